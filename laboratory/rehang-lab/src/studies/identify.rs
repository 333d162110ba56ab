//! `cargo lab study identify [FOLDER [REAL]]`: random mixtures of models' vectors, found or rightly not
//! found.
//!
//! The first table compares one model's vectors with another's. The two after it hold the numbers that say
//! from where on vectors are near or related. Then come models that may have made the vectors: each case
//! mixes a share of one thing into the vectors of a model, and a provider may have changed all of them. The
//! last three tables have the vectors alone, and the numbers that say from where on they are of two models.
//! Vectors of `scripts/real-pairs.py` and `scripts/real-providers.py` are taken from REAL where they are
//! there.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use half::f16;
use rand::rand_core::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rehang_core::{Distance, Error, Matrix, Progress, Result, difference};
use rehang_evaluate::{Candidate, Maker, Nearness, Origin, identify_vectors, nearness};
use rehang_files::{VectorSource, read_labels, read_matrix};
use rehang_fit::kinship_of_any;

const CASES: usize = 1000;
/// Number of vectors of a mixture.
const ITEMS: usize = 200;
/// Number of cases of which one is of one model alone.
const SOUND: u64 = 5;
/// Share of all cases that has to be right.
const RIGHT_MIN: f64 = 0.99;
/// Number of vectors of a gallery that is looked at without models, and shares of the smaller kind, in
/// percent.
const ALONE: usize = 1500;
const SHARES: [usize; 4] = [0, 50, 8, 3];
const DRAWS: u64 = 2;
/// Thresholds of [`Nearness`] that are tried: the most that it may be for a vector to be related, and to be
/// near.
const NEARER: [f64; 5] = [0.0, 0.01, 0.02, 0.05, 0.1];
const TIMES: [f64; 7] = [0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8];
/// Thresholds of kinship that are tried: the most between two kinds, and the least within each, for the kinds
/// to be of two models.
const ACROSS: [f64; 5] = [0.05, 0.1, 0.15, 0.2, 0.25];
const WITHIN: [f64; 4] = [0.0, 0.1, 0.2, 0.3];
/// Percent of the vectors that have to be told right for the kinds to count as told.
const TOLD_MIN: f64 = 90.0;
/// Vectors of providers that are not looked at alone, since they are more of the same.
const PROVIDED: [&str; 3] = ["L6 in 8 bits", "L6, prompt 1", "E5, passage"];

/// Set of items with the vectors of several models, row by row.
struct Set {
    name: String,
    models: Vec<(String, Matrix)>,
}

/// Prints all tables; fails where fewer cases are right than have to be.
pub fn run(arguments: &[&str]) -> Result<()> {
    let folder = PathBuf::from(arguments.first().copied().unwrap_or("../shared/data"));
    let real = PathBuf::from(arguments.get(1).copied().unwrap_or("target/real"));
    let sets = sets(&folder, &real)?;
    one_by_one(&sets)?;
    near_and_related(&sets)?;
    with_models(&sets)?;
    without_models(&sets)
}

/// Prints how one model's vectors stand to another's of the same items.
fn one_by_one(sets: &[Set]) -> Result<()> {
    println!(
        "| set | vectors of | model | its own | nearly | related | none | difference: least, middle, most |\n|---|---|---|--:|--:|--:|--:|--:|"
    );
    for set in sets.iter().filter(|set| set.name.ends_with("providers")) {
        let model_named = |name: &str| set.models.iter().find(|(model, _)| model == name);
        for (unknown, model) in [
            ("L6 in 8 bits", "new"),
            ("L6, prompt 1", "new"),
            ("L6, prompt 2", "new"),
            ("E5, passage", "E5, query"),
            ("L3", "new"),
            ("E5, query", "new"),
        ] {
            let (Some((_, vectors)), Some((name, own))) = (model_named(unknown), model_named(model)) else {
                continue;
            };
            let candidate = Candidate { name: name.clone(), vectors: own.clone(), noise: 0.0 };
            let found = identify_vectors(vectors, &[candidate])?;
            let between = |row: usize| difference(Distance::Cosine, vectors.row(row), own.row(row));
            let mut differences: Vec<f64> = (0..vectors.rows()).map(between).collect();
            differences.sort_by(f64::total_cmp);
            let at = [0, differences.len() / 2, differences.len() - 1]
                .map(|place| format!("{:.4}", differences[place]));
            let told = &found.models[0];
            println!(
                "| {} | {unknown} | {model} | {} | {} | {} | {} | {} |",
                set.name,
                told.made,
                told.near,
                told.related,
                found.none,
                at.join(", ")
            );
        }
    }
    println!();
    Ok(())
}

/// Leaves out sets whose models another set has too, beside those of providers.
fn distinct_sets(sets: &[Set]) -> impl Iterator<Item = &Set> {
    let provided = |set: &Set| format!("{}, providers", set.name);
    sets.iter().filter(move |set| sets.iter().all(|other| other.name != provided(set)))
}

/// Whether a model counts words or n-grams.
fn is_counts(set: &Set, name: &str) -> bool {
    !set.name.starts_with("img_") && ["old", "mid"].contains(&name)
}

/// Says how two models of one set are related.
fn relation(set: &Set, one: &str, other: &str) -> &'static str {
    let family =
        |name: &str| !set.name.starts_with("img_") && ["L3", "L6"].contains(&model_of(name).as_str());
    if one == other {
        if is_counts(set, one) { "one model, counts of words" } else { "one model" }
    } else if is_one(one, other) {
        "another provider"
    } else if model_of(one) == model_of(other) {
        "another prompt"
    } else if family(one) && family(other) {
        "one family"
    } else if is_counts(set, one) || is_counts(set, other) {
        "counts of words"
    } else {
        "trained apart"
    }
}

fn sorted(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(f64::total_cmp);
    values
}

/// Gives the values at some parts of the way from the least to the most.
fn quantiles(values: &[f64], parts: &[f64], digits: usize) -> String {
    let quantile =
        |part: &f64| format!("{:.digits$}", values[(part * (values.len() - 1) as f64).round() as usize]);
    parts.iter().map(quantile).collect::<Vec<_>>().join(", ")
}

/// Prints the [`Nearness`] of models to each other, and what other thresholds would say.
fn near_and_related(sets: &[Set]) -> Result<()> {
    let mut found: BTreeMap<&'static str, Vec<Nearness>> = BTreeMap::new();
    for set in distinct_sets(sets) {
        for (one, vectors) in &set.models {
            let mut random = ChaCha8Rng::seed_from_u64(0);
            let rows = drawn(&mut random, vectors.rows(), ALONE);
            let vectors = vectors.select(&rows);
            for (other, own) in set.models.iter().filter(|(other, _)| other != one) {
                let candidate = Candidate { name: other.clone(), vectors: own.select(&rows), noise: 0.0 };
                let near = nearness(&vectors, &candidate)?;
                found.entry(relation(set, one, other)).or_default().extend(near.into_iter().flatten());
            }
        }
    }
    println!(
        "| vectors of | vectors | nearer, %: 50 %, 90 %, 99 % | times as far: 1 %, 50 %, 90 %, 99 % |\n|---|--:|--:|--:|"
    );
    for (relation, near) in &found {
        let nearer = sorted(near.iter().map(|near| 100.0 * near.nearer).collect());
        let times = sorted(near.iter().map(|near| near.times).collect());
        println!(
            "| {relation} | {} | {} | {} |",
            near.len(),
            quantiles(&nearer, &[0.5, 0.9, 0.99], 0),
            quantiles(&times, &[0.01, 0.5, 0.9, 0.99], 3)
        );
    }
    let names: Vec<&str> = found.keys().copied().collect();
    println!("\n| percent of them | {} |\n|---|{}", names.join(" | "), "--:|".repeat(names.len()));
    let line = |what: String, is: &dyn Fn(&Nearness) -> bool| {
        let part = |near: &Vec<Nearness>| {
            format!("{:.2}", 100.0 * near.iter().filter(|near| is(near)).count() as f64 / near.len() as f64)
        };
        println!("| {what} | {} |", found.values().map(part).collect::<Vec<_>>().join(" | "));
    };
    for nearer in NEARER {
        line(format!("nearer ≤ {:.0} %", 100.0 * nearer), &|near| {
            near.nearer <= nearer && near.times < 1.0
        });
    }
    for times in TIMES {
        line(format!("nearer ≤ 1 %, times ≤ {times}"), &|near| {
            near.nearer <= 0.01 && near.times <= times
        });
    }
    println!();
    Ok(())
}

fn read(path: &Path) -> Result<Matrix> {
    read_matrix(&VectorSource::path(path))
}

fn sets(folder: &Path, real: &Path) -> Result<Vec<Set>> {
    let mut sets = Vec::new();
    for name in ["img_omniglot", "img_caltech101"] {
        let mut models = Vec::new();
        for model in ["old", "side", "new"] {
            let parts = ["train", "seen", "unseen"]
                .map(|part| read(&folder.join(name).join(format!("{part}_{model}.npy"))));
            let parts = parts.into_iter().collect::<Result<Vec<_>>>()?;
            let rows = |row: usize| {
                let mut row = row;
                for part in &parts {
                    if row < part.rows() {
                        return part.row(row);
                    }
                    row -= part.rows();
                }
                unreachable!("a row of one of the parts")
            };
            let count = parts.iter().map(Matrix::rows).sum();
            models.push((
                model.to_owned(),
                Matrix::from_fn(count, parts[0].columns(), |row, column| rows(row)[column]),
            ));
        }
        sets.push(Set { name: name.into(), models });
    }
    for name in ["banking77", "clinc150"] {
        let set = folder.join(format!("text_{name}"));
        let mut models = Vec::new();
        for model in ["old", "mid", "new"] {
            models.push((model.to_owned(), read(&set.join(format!("{model}.npy")))?));
        }
        let pairs = real.join(format!("{name}_l3_l6"));
        if pairs.join("old.npy").exists() {
            models.push(("L3".into(), read(&pairs.join("old.npy"))?));
        }
        let given = real.join(format!("providers_{name}"));
        if given.join("rows.npy").exists() {
            let rows = read_labels(&VectorSource::path(given.join("rows.npy")))?;
            let rows: Vec<usize> = rows.into_iter().filter_map(|row| usize::try_from(row).ok()).collect();
            let mut provided: Vec<(String, Matrix)> =
                models.iter().map(|(name, matrix)| (name.clone(), matrix.select(&rows))).collect();
            for (file, model) in [
                ("model", "L6 in 8 bits"),
                ("prompt-short", "L6, prompt 1"),
                ("prompt-long", "L6, prompt 2"),
                ("e5-query", "E5, query"),
                ("e5-passage", "E5, passage"),
            ] {
                let path = given.join(format!("{file}.npy"));
                if path.exists() {
                    provided.push((model.into(), read(&path)?));
                }
            }
            sets.push(Set { name: format!("{name}, providers"), models: provided });
        }
        sets.push(Set { name: name.into(), models });
    }
    Ok(sets)
}

/// Whether two names are of one model, up to what providers change: the set's `new` is MiniLM-L6 in single
/// precision.
fn is_one(a: &str, b: &str) -> bool {
    let family =
        |name: &str| if name == "new" || name == "L6 in 8 bits" { "L6".to_owned() } else { name.to_owned() };
    family(a) == family(b)
}

/// Names the model behind a name, whatever its provider and its prompt.
fn model_of(name: &str) -> String {
    let name = name.split(',').next().unwrap_or(name);
    if name == "new" || name == "L6 in 8 bits" { "L6".into() } else { name.into() }
}

fn random_below(random: &mut ChaCha8Rng, end: usize) -> usize {
    (random.next_u64() % end as u64) as usize
}

fn unit(random: &mut ChaCha8Rng) -> f64 {
    (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

fn drawn(random: &mut ChaCha8Rng, of: usize, count: usize) -> Vec<usize> {
    let mut keyed: Vec<(u64, usize)> = (0..of).map(|row| (random.next_u64(), row)).collect();
    keyed.sort_unstable();
    keyed.into_iter().take(count).map(|(_, row)| row).collect()
}

/// Counts of one sort of case.
#[derive(Default)]
struct Count {
    cases: usize,
    right: usize,
    vectors: usize,
    wrong: usize,
}

/// Changes all vectors as a provider may, in one of several ways; names the way.
fn changed(matrix: &Matrix, how: usize) -> (&'static str, Matrix) {
    let width = matrix.columns();
    let cut = |width: usize| Matrix::from_fn(matrix.rows(), width, |row, column| matrix.row(row)[column]);
    let scaled = |mut matrix: Matrix| {
        matrix.normalise_rows();
        matrix
    };
    match how {
        0 => ("as it is", matrix.clone()),
        1 => ("length 1", scaled(matrix.clone())),
        2 => ("cut to a half", cut(width / 2)),
        3 => ("cut to a half, length 1", scaled(cut(width / 2))),
        4 => {
            let rounded = |row: usize, column: usize| f16::from_f32(matrix.row(row)[column]).to_f32();
            ("float16", Matrix::from_fn(matrix.rows(), width, rounded))
        }
        _ => {
            let steps: Vec<f32> = (0..matrix.rows())
                .map(|row| matrix.row(row).iter().fold(0.0_f32, |most, value| most.max(value.abs())) / 127.0)
                .collect();
            let rounded = |row: usize, column: usize| {
                let step = steps[row];
                if step > 0.0 { (matrix.row(row)[column] / step).round() * step } else { 0.0 }
            };
            ("8 bits", Matrix::from_fn(matrix.rows(), width, rounded))
        }
    }
}

fn with_models(sets: &[Set]) -> Result<()> {
    let mut counts: BTreeMap<(String, &'static str), Count> = BTreeMap::new();
    let mut all = Count::default();
    for case in 0..CASES as u64 {
        let mut random = ChaCha8Rng::seed_from_u64(case);
        let set = &sets[random_below(&mut random, sets.len())];
        let first = random_below(&mut random, set.models.len());
        let rows = drawn(&mut random, set.models[first].1.rows(), ITEMS);
        let own = set.models[first].1.select(&rows);
        let width = own.columns();
        // 1 to 50 %, as often from 1 to 7 as from 7 to 50.
        let is_sound = random.next_u64().is_multiple_of(SOUND);
        let share = if is_sound { 0.0 } else { 50_f64.powf(unit(&mut random)) / 100.0 };
        let count = ((share * ITEMS as f64).round() as usize).max(usize::from(!is_sound));
        // Mixed in is another model of at least this width, cut to it; a rotation; or a prompt, as a shift of
        // all and noise of each.
        let others: Vec<usize> = (0..set.models.len())
            .filter(|&model| {
                set.models[model].1.columns() >= width && !is_one(&set.models[model].0, &set.models[first].0)
            })
            .collect();
        let kind = random_below(&mut random, 4);
        let (what, other, second) = if kind >= 2 && !others.is_empty() {
            let second = others[random_below(&mut random, others.len())];
            let whole = set.models[second].1.select(&rows);
            let cut = Matrix::from_fn(ITEMS, width, |row, column| whole.row(row)[column]);
            let of_one = model_of(&set.models[second].0) == model_of(&set.models[first].0);
            (if of_one { "real prompt" } else { "other model" }, cut, Some(second))
        } else if kind == 0 {
            let sign = |column: usize| if column.is_multiple_of(3) { -1.0 } else { 1.0 };
            (
                "rotation",
                Matrix::from_fn(ITEMS, width, |row, column| {
                    sign(column) * own.row(row)[(column + 5) % width]
                }),
                None,
            )
        } else {
            let shift: Vec<f64> = (0..width).map(|_| unit(&mut random) - 0.5).collect();
            let lengths = own.norms();
            let mut noise = || 2.0 * (unit(&mut random) - 0.5);
            let level = (3.0 / width as f64).sqrt();
            let moved = Matrix::from_fn(ITEMS, width, |row, column| {
                let by = level * (0.3 * 2.0 * shift[column] + 0.2 * noise());
                (f64::from(own.row(row)[column]) + lengths[row] * by) as f32
            });
            ("shift and noise", moved, None)
        };
        let is_other: Vec<bool> = {
            let mut is_other = vec![false; ITEMS];
            for row in drawn(&mut random, ITEMS, count) {
                is_other[row] = true;
            }
            is_other
        };
        let mixed = Matrix::from_fn(ITEMS, width, |row, column| {
            if is_other[row] { other.row(row)[column] } else { own.row(row)[column] }
        });
        let (change, mixed) = changed(&mixed, random_below(&mut random, 6));
        // The model is known, in half of the cases by another provider where the set has one; what is mixed
        // in is known or not.
        let by = (0..set.models.len())
            .find(|&model| model != first && is_one(&set.models[model].0, &set.models[first].0))
            .filter(|_| random.next_u64().is_multiple_of(2))
            .unwrap_or(first);
        let mut known = vec![by];
        if random.next_u64().is_multiple_of(2) {
            known.extend(second);
            known.extend(others.iter().copied().find(|&model| Some(model) != second));
        }
        let candidates: Vec<Candidate> = known
            .iter()
            .map(|&model| Candidate {
                name: set.models[model].0.clone(),
                vectors: set.models[model].1.select(&rows),
                noise: 0.0,
            })
            .collect();
        let found = identify_vectors(&mixed, &candidates)?;
        let has_direction = |matrix: &Matrix, row: usize| rehang_core::norm(matrix.row(row)) > 0.0;
        let seen = (0..ITEMS).filter(|&row| is_other[row] && has_direction(&mixed, row)).count();
        let expected = if seen > 0 { Origin::Mixed } else { Origin::OneModel };
        let is_right_maker = |row: usize| match (is_other[row], found.makers[row]) {
            (_, Maker::Untold) => !has_direction(&mixed, row) || !has_direction(&candidates[0].vectors, row),
            (false, Maker::Model(model)) => model == 0,
            (true, Maker::Model(model)) => Some(known[model]) == second,
            (true, Maker::Near(_) | Maker::None) => !second.is_some_and(|second| known.contains(&second)),
            (false, Maker::Near(_) | Maker::None) => false,
        };
        let wrong = (0..ITEMS).filter(|&row| !is_right_maker(row)).count();
        let what = if is_sound { "nothing" } else { what };
        let right = found.origin == expected && found.main() == Some(0);
        if !right || wrong > 0 {
            eprintln!(
                "case {case}: {} {} {what} {:.1} %, {change}, known {known:?}: {:?}, {wrong} vectors wrong, tolerance {:.4}",
                set.name,
                set.models[first].0,
                100.0 * share,
                found.origin,
                found.models[0].tolerance
            );
        }
        for count in [counts.entry((what.to_owned(), change)).or_default(), &mut all] {
            count.cases += 1;
            count.right += usize::from(right);
            count.vectors += ITEMS;
            count.wrong += wrong;
        }
    }
    println!("| mixed in | all vectors | cases | right | vectors told wrong |\n|---|---|--:|--:|--:|");
    for ((what, change), Count { cases, right, vectors, wrong }) in &counts {
        println!("| {what} | {change} | {cases} | {right} | {wrong} of {vectors} |");
    }
    let Count { cases, right, vectors, wrong } = all;
    println!("| **all** | | {cases} | {right} | {wrong} of {vectors} |");
    if (right as f64) < RIGHT_MIN * cases as f64 {
        return Err(Error::conflict("too few cases are right", format!("{right} of {cases}")));
    }
    Ok(())
}

/// Result of one draw without models.
struct Drawn {
    across: f64,
    within: f64,
    /// Vectors of the right kind, percent; none where one model made all.
    told: Option<f64>,
}

fn without_models(sets: &[Set]) -> Result<()> {
    println!(
        "\n| set | model | mixed in | share, % | found | vectors told right, % | across | within |\n|---|---|---|--:|--:|--:|--:|--:|"
    );
    let mut seen: BTreeMap<(&'static str, usize), Vec<Drawn>> = BTreeMap::new();
    for set in distinct_sets(sets) {
        let of_all = set.models.iter().filter(|(name, _)| !PROVIDED.contains(&name.as_str()));
        let models: Vec<&(String, Matrix)> = of_all.collect();
        for (first, (name, own)) in models.iter().enumerate() {
            for (second, (other_name, other)) in models.iter().enumerate() {
                if other.columns() != own.columns() {
                    continue;
                }
                for share in SHARES.into_iter().filter(|&share| (share == 0) == (first == second)) {
                    let (mut found, mut told_of_found, mut draws) = (0, 0.0, Vec::new());
                    for draw in 0..DRAWS {
                        let mut random = ChaCha8Rng::seed_from_u64(1000 * draw + share as u64);
                        let rows = drawn(&mut random, own.rows(), ALONE);
                        let is_other = |place: usize| 100 * place < share * rows.len();
                        let mixed = Matrix::from_fn(rows.len(), own.columns(), |place, column| {
                            let vectors = if is_other(place) { other } else { own };
                            vectors.row(rows[place])[column]
                        });
                        let Some(kinds) = kinship_of_any(&mixed, draw, &Progress::default())? else {
                            continue;
                        };
                        let is_right = |place: &usize| kinds.small[*place] == is_other(*place);
                        let right = (0..rows.len()).filter(is_right).count();
                        // Either of two halves may be called the smaller one.
                        let right = if share == 50 { right.max(rows.len() - right) } else { right };
                        let told = 100.0 * right as f64 / rows.len() as f64;
                        if kinds.is_of_two() {
                            found += 1;
                            told_of_found += told;
                        }
                        let told = (share > 0).then_some(told);
                        draws.push(Drawn { across: kinds.across, within: kinds.within, told });
                    }
                    let told = if found == 0 || share == 0 {
                        String::new()
                    } else {
                        format!("{:.1}", told_of_found / f64::from(found))
                    };
                    let mean = |of: fn(&Drawn) -> f64| {
                        format!("{:.2}", draws.iter().map(of).sum::<f64>() / draws.len() as f64)
                    };
                    let of_mixture = if share == 0 { "nothing" } else { other_name };
                    println!(
                        "| {} | {name} | {of_mixture} | {share} | {found} of {DRAWS} | {told} | {} | {} |",
                        set.name,
                        mean(|draw| draw.across),
                        mean(|draw| draw.within)
                    );
                    let relation = relation(set, name, other_name);
                    seen.entry((relation, share)).or_default().extend(draws);
                }
            }
        }
    }
    of_two_models(&seen);
    Ok(())
}

/// Prints the kinship of kinds, and what other thresholds would find.
fn of_two_models(seen: &BTreeMap<(&'static str, usize), Vec<Drawn>>) {
    println!(
        "\n| mixed in | share, % | draws | told | across: least, middle, most | within: least, middle, most |\n|---|--:|--:|--:|--:|--:|"
    );
    let is_told = |draw: &&Drawn| draw.told.is_none_or(|told| told >= TOLD_MIN);
    for ((relation, share), draws) in seen {
        let told = draws.iter().filter(is_told).count();
        for (which, of) in [(true, "told"), (false, "not told")] {
            let of_these: Vec<&Drawn> = draws.iter().filter(|draw| is_told(draw) == which).collect();
            if of_these.is_empty() {
                continue;
            }
            let values = |of: fn(&Drawn) -> f64| {
                quantiles(&sorted(of_these.iter().map(|draw| of(draw)).collect()), &[0.0, 0.5, 1.0], 2)
            };
            let of = if *share == 0 { "" } else { of };
            println!(
                "| {relation} | {share} | {} of {} | {of} | {} | {} |",
                if which { told } else { draws.len() - told },
                draws.len(),
                values(|draw| draw.across),
                values(|draw| draw.within)
            );
        }
    }
    println!(
        "\n| across at most | within at least | of one model, found | of two, found and told | of two, found and not told |\n|--:|--:|--:|--:|--:|"
    );
    for across in ACROSS {
        for within in WITHIN {
            let found = |draw: &&Drawn| draw.across.abs() <= across && draw.within >= within;
            let count = |of_one: bool, told: bool| {
                let draws = seen
                    .iter()
                    .filter(|((_, share), _)| (*share == 0) == of_one)
                    .flat_map(|(_, draws)| draws);
                let draws: Vec<&Drawn> = draws.filter(|draw| is_told(draw) == told).collect();
                format!("{} of {}", draws.iter().filter(|draw| found(draw)).count(), draws.len())
            };
            println!(
                "| {across} | {within} | {} | {} | {} |",
                count(true, true),
                count(false, true),
                count(false, false)
            );
        }
    }
}
