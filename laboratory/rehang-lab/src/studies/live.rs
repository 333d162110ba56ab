//! `cargo lab study live [SPLITS [FOLDER [SET…]]]`: what bridges and switches bring in galleries that the
//! product itself has upgraded, asked through the library and in SQL.
//!
//! Every test part of a set is a gallery in a SQLite file, once with labels and once without. It goes an
//! application's own road: import, pairs, fit, report, start, bridge, switch; the set's new vectors answer as
//! the encoder. There are as many pairs as in the study `whole`, and the product draws them. Each split imports
//! the items in another order, so other ones are drawn. All items that are no pairs ask at every stage, each
//! leaving itself out. They ask for the whole ranking, so mAP needs no cut.
//!
//! Where there is a PostgreSQL, a table of the same items goes the same road in the first split, and some of
//! them ask through the library and through `rehang.search`. What is in the record is not measured again.

mod sql;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use rehang::curve::{MAP, Relevance, TOP1};
use rehang::encode::Function;
use rehang::files::{AtomicFile, VectorSource};
use rehang::fit::{Method, SHARES, fit_bridge_of};
use rehang::store::{Filter, Found, Scan, Select};
use rehang::upgrade::{Import, PairsFiles, PairsOptions, Serving, Unobserved, import};
use rehang::{
    Bridge, Configuration, Distance, Error, Gallery, Location, Matrix, Pairs, Progress, Provenance, Result,
    Space, Upgrade,
};
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::studies::bridge::{cosine, gain_and_half, mean, rank_queries, unit};
use crate::studies::fuse::right_hits;
use crate::studies::papers::units::SETS;
use crate::studies::records;
use crate::studies::regret::{Ground, labelled, parse_arguments};
use crate::studies::whole::{Gains, deal, is_behind, line, summary};

const RECORD: &str = "laboratory/bench/runs/live.jsonl";
const PAGE: &str = "laboratory/bench/runs/live.md";
/// Line of the page that the tables stand below.
const MARK: &str = "<!-- made by `cargo lab study live` -->\n";

/// Ways of serving whose gains are kept, in the order of the tables. The last one is no choice of the product:
/// the bridge that brings these very queries most mAP and costs them no top-1.
const SERVED: [&str; 5] = ["bridge", "switch", "mixed", "fused", "best bridge"];
const BRIDGE: usize = 0;
const SWITCH: usize = 1;
const MIXED: usize = 2;
const FUSED: usize = 3;
const BEST: usize = 4;
/// Name of the old search, which all gains are over.
const NOTHING: &str = "doing nothing";
/// Points of mAP from which on a bridge is missed where there is none.
const WORTH: f64 = 2.0;

/// Queries of one search: their whole rankings are in memory together.
const TOGETHER: usize = 64;

/// Values of every query in percent: mAP, then top-1.
type Values = [Vec<f64>; 2];

/// Results of one gallery by one split, with labels or without.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Row {
    set: String,
    part: String,
    split: u64,
    with_labels: bool,
    pairs: usize,
    queries: usize,
    /// Method of the map that was fitted.
    method: String,
    /// Share of the bridge that was built; 0 where none was.
    share: f64,
    /// Weight of fused searches; none where the map knows no fusion.
    weight: Option<f64>,
    /// Searches that the switch chose; none where it refused to switch.
    chosen: Option<Serving>,
    /// Method and share of the best bridge.
    best: String,
    /// mAP and top-1 of doing nothing, as the gallery answers, and by arithmetic on the vectors.
    today: [f64; 2],
    computed: [f64; 2],
    /// Gains over doing nothing, by way of serving.
    gains: Vec<Gains>,
    /// Result of [`sql::compare`]; none where there was no server.
    sql: Option<[usize; 3]>,
}

impl Row {
    /// Names the gallery.
    fn name(&self) -> String {
        let known = if self.with_labels { "" } else { ", without labels" };
        format!("{} {}{known}", self.set, self.part)
    }

    /// Words what was chosen, and the best bridge.
    fn choice(&self) -> String {
        let weight = self.weight.map_or("no fusion".into(), |weight| weight.to_string());
        let chosen = match self.chosen {
            Some(Serving::Mixed) => "mixed",
            Some(Serving::Fused) => "fused",
            Some(Serving::Either) => "either",
            None => "refused",
        };
        format!("{}, {weight}, {chosen}; {}", self.share, self.best)
    }
}

/// Measures what is missing of the sets, and makes the page.
pub fn run(arguments: &[&str]) -> Result<()> {
    let (splits, folder, sets) = parse_arguments(arguments, 3, &SETS)?;
    let server = sql::server();
    let mut rows: Vec<Row> = records::read(Path::new(RECORD))?;
    for set in sets {
        for ground in labelled(&folder, set)?.grounds {
            for (split, with_labels) in (0..splits).flat_map(|split| [(split, true), (split, false)]) {
                let is_this = |row: &Row| {
                    (row.set.as_str(), row.part.as_str()) == (set, ground.name.as_str())
                        && (row.split, row.with_labels) == (split, with_labels)
                };
                let place = if let Some(place) = rows.iter().position(is_this) {
                    place
                } else {
                    eprintln!("{set} {}, split {split}, with labels: {with_labels} …", ground.name);
                    rows.push(measure(set, &ground, split, with_labels)?);
                    records::write(RECORD, &records::lines(&rows)?)?;
                    rows.len() - 1
                };
                if let Some(server) = server
                    && split == 0
                    && rows[place].sql.is_none()
                {
                    eprintln!("{set} {}, in SQL …", ground.name);
                    rows[place].sql = Some(sql::compare(server, &ground, with_labels)?);
                    records::write(RECORD, &records::lines(&rows)?)?;
                }
            }
        }
    }
    let text = page(&rows);
    records::write_below(PAGE, MARK, &text)?;
    println!("{text}");
    Ok(())
}

/// Makes a gallery in a file, takes it through its upgrade and measures every stage.
fn measure(set: &str, ground: &Ground, split: u64, with_labels: bool) -> Result<Row> {
    let folder = tempfile::tempdir().map_err(|error| Error::io("create", std::env::temp_dir(), &error))?;
    let (order, count) = deal(ground.old.len(), split);
    let item = |&row: &usize| {
        let (id, label) = (row.to_string(), with_labels.then(|| ground.labels[row]));
        format!("{}\n", json!({ "id": id, "source": id, "label": label }))
    };
    let items = folder.path().join("items.jsonl");
    AtomicFile::write(&items, order.iter().map(item).collect::<String>())?;
    let location = Location::file(folder.path().join("gallery.db"));
    let vectors = VectorSource::given("old vectors", ground.old.matrix().select(&order));
    let files = Import { space: "old".into(), distance: Distance::Cosine, vectors, items };
    let old = import(&location, &files, &Unobserved)?.of;
    let upgrade = Upgrade::new(Configuration::new(location, old, new_space(ground))?)?;
    let gallery = upgrade.gallery();
    let mut values: BTreeMap<&str, Values> = BTreeMap::new();
    let walked = walk(&upgrade, ground, count, &mut |way, queries| {
        values.insert(way, measure_searches(&gallery, ground, queries)?);
        Ok(())
    })?;
    let today = &values[NOTHING];
    let gains = |way: usize| match values.get(SERVED[way]) {
        Some(of_way) => [0, 1].map(|metric| gain_and_half(&of_way[metric], &today[metric])),
        None => [(0.0, 0.0); 2],
    };
    let (best, best_gains, computed) = best_bridge(ground, &walked.pairs, &walked.queries)?;
    // Where the switch is refused, searches go on as before it.
    let switched = walked.chosen.map_or(BRIDGE, way_of);
    Ok(Row {
        set: set.into(),
        part: ground.name.clone(),
        split,
        with_labels,
        pairs: walked.pairs.len(),
        queries: walked.queries.len(),
        method: walked.method,
        share: walked.share,
        weight: walked.weight,
        chosen: walked.chosen,
        best,
        today: [0, 1].map(|metric| mean(&today[metric])),
        computed,
        gains: vec![gains(BRIDGE), gains(switched), gains(MIXED), gains(FUSED), best_gains],
        sql: None,
    })
}

/// Makes the space of the new vectors, of which nothing is known before they are embedded.
fn new_space(ground: &Ground) -> Space {
    Space::new("new", ground.new.dimension(), Distance::Cosine, false)
}

/// Finds the way of serving that a switch leads to, for searches that have the queries of both models.
fn way_of(serving: Serving) -> usize {
    if serving == Serving::Mixed { MIXED } else { FUSED }
}

/// Upgrade at its end: its pairs, all other items, and what was chosen on the way.
struct Walked {
    pairs: Vec<usize>,
    queries: Vec<usize>,
    method: String,
    weight: Option<f64>,
    share: f64,
    chosen: Option<Serving>,
}

/// Takes a gallery through its upgrade as an application would, and on to the switch that was not chosen. `ask`
/// is called wherever searches go another way, with its name and the items that are no pairs.
fn walk(
    upgrade: &Upgrade,
    ground: &Ground,
    count: usize,
    ask: &mut dyn FnMut(&'static str, &[usize]) -> Result<()>,
) -> Result<Walked> {
    let (quiet, vectors) = (Progress::default(), ground.new.matrix().clone());
    let space = upgrade.new_space()?;
    let encoder = Function::new(&space, 64, false, Some("new".into()), move |sources: &[&str]| {
        let rows: Vec<usize> = sources.iter().map(|source| source.parse().unwrap_or_default()).collect();
        Ok(vectors.select(&rows))
    });
    let options = PairsOptions { items: count, worth: 0.0, ..PairsOptions::default() };
    upgrade.pairs(&options, &PairsFiles::default(), Some(&encoder), &Unobserved)?;
    let items = ground.new.len();
    let natives = upgrade.store().scan(&Scan::new("new", Select::Provenance(Provenance::Native), items))?;
    let natives: BTreeSet<usize> = natives.iter().filter_map(|record| record.item.id.parse().ok()).collect();
    let (pairs, queries): (Vec<usize>, Vec<usize>) = (0..items).partition(|row| natives.contains(row));
    let adapter = upgrade.fit(Method::Auto, None, &quiet)?.fitted.adapter;
    // A small gallery holds out too few pairs for a report, and the upgrade goes on without one.
    if let Err(error) = upgrade.report(&quiet)
        && !error.is_conflict()
    {
        return Err(error);
    }
    upgrade.start(&Unobserved)?;
    ask(NOTHING, &queries)?;
    let share = upgrade.bridge(&quiet)?.bridge.map_or(0.0, |bridge| bridge.share);
    if share > 0.0 {
        ask(SERVED[BRIDGE], &queries)?;
    }
    let chosen = match upgrade.switch(None, false) {
        Ok((switched, _)) => Some(switched.serving_as),
        Err(error) if error.is_conflict() => None,
        Err(error) => return Err(error),
    };
    let weight = adapter.fusion.as_ref().map(|fusion| fusion.weight);
    let mut ways = vec![(MIXED, Serving::Mixed)];
    ways.extend(weight.map(|_| (FUSED, Serving::Fused)));
    // The way that was chosen comes first, while the gallery is as the switch has left it.
    let is_chosen = |way: usize| chosen.map(way_of) == Some(way);
    ways.sort_by_key(|&(way, _)| !is_chosen(way));
    for (way, serving) in ways {
        if !is_chosen(way) {
            upgrade.switch(Some(serving), true)?;
        }
        ask(SERVED[way], &queries)?;
    }
    Ok(Walked { pairs, queries, method: adapter.training.method, weight, share, chosen })
}

/// Asks the nearest items to some items' own vectors by both models.
fn search(gallery: &Gallery, ground: &Ground, rows: &[usize], depth: usize) -> Result<Vec<Vec<Found>>> {
    let [old, new] = [&ground.old, &ground.new].map(|vectors| vectors.matrix().select(rows));
    Ok(gallery.search(&[("old", &old), ("new", &new)], depth, &Filter::default())?.found)
}

/// Measures what some items find as the gallery serves now, each in the ranking of all others.
fn measure_searches(gallery: &Gallery, ground: &Ground, queries: &[usize]) -> Result<Values> {
    let mut values: Values = [Vec::new(), Vec::new()];
    for rows in queries.chunks(TOGETHER) {
        for (&row, hits) in rows.iter().zip(search(gallery, ground, rows, ground.old.len())?) {
            let right = right_hits(&hits, row, &ground.labels);
            let of_label = ground.labels.iter().filter(|label| **label == ground.labels[row]).count();
            let (mut count, mut precisions) = (0.0, 0.0);
            for (place, _) in right.iter().enumerate().filter(|(_, is_right)| **is_right) {
                count += 1.0;
                precisions += count / (place + 1) as f64;
            }
            // The item that asks has the label too.
            values[0].push(100.0 * precisions / of_label.saturating_sub(1).max(1) as f64);
            values[1].push(if right.first() == Some(&true) { 100.0 } else { 0.0 });
        }
    }
    Ok(values)
}

/// Finds the best bridge that could be built of these pairs, by arithmetic on the vectors: its method and
/// share, and its gains. Also gives mAP and top-1 of doing nothing.
fn best_bridge(ground: &Ground, pairs: &[usize], queries: &[usize]) -> Result<(String, Gains, [f64; 2])> {
    let quiet = Progress::default();
    let (old, new) = (cosine(&ground.old)?, cosine(&ground.new)?);
    let pairs = Pairs::new(old.select(pairs), new.select(pairs), None, None)?;
    let relevance = Relevance::Labels { gallery: &ground.labels, queries: None };
    let unit_old = unit(old.matrix());
    let values_of = |by_all: &Matrix| -> Result<Values> {
        let ranks = rank_queries(&unit_old, by_all, relevance, true)?;
        Ok([MAP, TOP1].map(|metric| {
            let counted = ranks.queries.iter().copied().zip(ranks.values[metric].iter().copied());
            let by_row: BTreeMap<usize, f64> = counted.collect();
            queries.iter().filter_map(|row| by_row.get(row).copied()).collect()
        }))
    };
    let today = values_of(old.matrix())?;
    let (mut best, mut best_gains): (String, Gains) = ("none".into(), [(0.0, 0.0); 2]);
    for method in [Method::Ridge, Method::Procrustes] {
        let by_new_alone = fit_bridge_of(&pairs, method, 1.0, 0, &quiet)?;
        for share in SHARES {
            let bridge = Bridge { share, ..by_new_alone.clone() };
            let values = values_of(&bridge.queries(Some(old.matrix()), new.matrix())?)?;
            let gains: Gains = [0, 1].map(|metric| gain_and_half(&values[metric], &today[metric]));
            if gains[0].0 > best_gains[0].0 && gains[1].0 >= -gains[1].1 {
                (best, best_gains) = (format!("{method} {share}"), gains);
            }
        }
    }
    Ok((best, best_gains, [0, 1].map(|metric| mean(&today[metric]))))
}

/// Makes the tables, and lists what is not as it should be.
fn page(rows: &[Row]) -> String {
    let mut text = format!(
        "| gallery | share of the bridge, weight, switch; best bridge | {NOTHING} | {} |\n|---|---|---|{}\n",
        SERVED.join(" | "),
        "---|".repeat(SERVED.len())
    );
    let mut names: Vec<String> = Vec::new();
    for row in rows {
        let name = row.name();
        if names.contains(&name) {
            continue;
        }
        let of_splits: Vec<&Row> = rows.iter().filter(|other| other.name() == name).collect();
        let choices: Vec<String> = of_splits.iter().map(|row| row.choice()).collect();
        let today: Vec<[f64; 2]> = of_splits.iter().map(|row| row.today).collect();
        let gains: Vec<&[Gains]> = of_splits.iter().map(|row| row.gains.as_slice()).collect();
        text += &format!("{}\n", line(&name, &choices.join("<br>"), &today, &gains));
        names.push(name);
    }
    for (with_labels, title) in [(true, "With labels"), (false, "Without labels")] {
        let of_these = rows.iter().filter(|row| row.with_labels == with_labels);
        let all: Vec<&[Gains]> = of_these.map(|row| row.gains.as_slice()).collect();
        text += &format!("\n{title}:\n\n{}", summary(&SERVED, MIXED, &all));
    }
    let is_hurt = |row: &Row, way: usize| row.gains[way].iter().any(|(gain, half)| *gain < -half);
    let is_missed = |row: &Row| {
        let (gain, half) = row.gains[BEST][0];
        row.share == 0.0 && gain >= WORTH && gain > half
    };
    let is_fusion_behind =
        |row: &Row| row.weight.is_some() && [0, 1].iter().any(|&of| is_behind(&row.gains, FUSED, MIXED, of));
    let list = |what: &str, is_meant: &dyn Fn(&Row) -> bool| {
        let meant = rows.iter().filter(|row| is_meant(row));
        let names: Vec<String> = meant.map(|row| format!("{}, split {}", row.name(), row.split)).collect();
        let colon = if names.is_empty() { "" } else { ": " };
        format!("- {what}: {} of {}{colon}{}.\n", names.len(), rows.len(), names.join("; "))
    };
    text += "\n";
    text += &list("Bridges that hurt mAP or top-1", &|row| row.share > 0.0 && is_hurt(row, BRIDGE));
    text += &list("No bridge where one would bring 2 points of mAP", &is_missed);
    text += &list(
        "Fused searches by more than a standard error below the better of mixed ones and doing nothing",
        &is_fusion_behind,
    );
    text += &list("Switches that hurt mAP or top-1", &|row| row.chosen.is_some() && is_hurt(row, SWITCH));
    text += &list("Switches that were refused", &|row| row.chosen.is_none());
    let count = |serving: Serving| rows.iter().filter(|row| row.chosen == Some(serving)).count();
    let (mixed, either) = (count(Serving::Mixed), count(Serving::Either));
    text += &format!("- The switch chose mixed searches in {mixed}, and either way in {either}.\n");
    let apart = |row: &Row| [0, 1].map(|metric| (row.today[metric] - row.computed[metric]).abs());
    let farthest = rows.iter().flat_map(apart).fold(0.0, f64::max);
    text +=
        &format!("- Doing nothing, by galleries and by arithmetic: {farthest:.3} points apart at most.\n");
    let sql: Vec<[usize; 3]> = rows.iter().filter_map(|row| row.sql).collect();
    let sum = |at: usize| sql.iter().map(|counts| counts[at]).sum::<usize>();
    text += &format!(
        "- SQL, skipped where there is no PostgreSQL: {} tables, {} queries. Answered with other items than through the library: {}; with others at \
         the same distances: {}.\n",
        sql.len(),
        sum(0),
        sum(1),
        sum(2)
    );
    text
}
