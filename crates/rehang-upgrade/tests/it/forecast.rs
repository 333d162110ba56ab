//! Tests of forecasts on real data, the demo's digits, while a backfill takes the worst items first: the same
//! items ask from the first report to the last.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use rehang_core::adapter::{Dense, InputScaling, Map, Training};
use rehang_core::curve::{CurveOptions, MAP, Relevance, evaluate};
use rehang_core::report::Floors;
use rehang_core::{Bridge, Distance, FindingCode, Matrix, Progress, Provenance, Result, Space};
use rehang_encode::{Encoder, Input, ItemFailure, Spent};
use rehang_files::VectorSource;
use rehang_fit::Method;
use rehang_sqlite::SqliteStore;
use rehang_store::{Files, Filter, ItemWrite, Ledger, NewVector};
use rehang_upgrade::{
    AutoOptions, Forecast, Next, PairsFiles, PairsOptions, Recorded, RunOptions, Serving, Step, Unobserved,
    Until, Upgrade, set_bridge,
};

/// Digits of the demo by both models; the source of an item is the number of its row.
struct Digits {
    old: Matrix,
    new: Matrix,
    labels: Vec<i64>,
    space: Space,
}

impl Digits {
    fn read() -> Self {
        let demo = |name: &str| {
            VectorSource::path(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo").join(name))
        };
        let [old, new] = ["old.npy", "new.npy"].map(|name| rehang_files::read_matrix(&demo(name)).unwrap());
        let labels = rehang_files::read_labels(&demo("label.npy")).unwrap();
        let space = Space::new("new-model", new.columns(), Distance::L2, false);
        Self { old, new, labels, space }
    }

    /// Makes a gallery of all digits in a folder, filled by a map of so many pairs and reported on; the worst
    /// items come first in its backfill.
    fn begun(&self, folder: &Path, pairs: usize) -> PathBuf {
        let old = self.old_space();
        let store = SqliteStore::create(folder.join("G.db")).unwrap();
        store.create_space(&old, Provenance::Old).unwrap();
        let write = |row: usize| {
            let vectors =
                vec![NewVector::from_model("old-model", self.old.row(row).to_vec(), Provenance::Old)];
            let label = Some(self.labels[row].to_string());
            ItemWrite { label, ..ItemWrite::new(format!("digit {row}"), Some(row.to_string()), vectors) }
        };
        store.put(&(0..self.labels.len()).map(write).collect::<Vec<_>>()).unwrap();
        drop(store);
        self.upgraded(folder, "path = \"G.db\"", pairs)
    }

    /// Makes a gallery like [`Digits::begun`], in a table of PostgreSQL, whose shuffle is another one.
    #[cfg(feature = "postgres")]
    fn begun_in_a_table(&self, folder: &Path, address: &str, pairs: usize) -> PathBuf {
        let mut client = crate::server::client(address);
        let table = "CREATE TABLE digits (id int PRIMARY KEY, source text, label text, embedding vector(8))";
        client.batch_execute(table).unwrap();
        let insert = client.prepare("INSERT INTO digits VALUES ($1, $2, $3, $4::text::vector)").unwrap();
        for (row, label) in self.labels.iter().enumerate() {
            let vector = format!("{:?}", self.old.row(row));
            client.execute(&insert, &[&(row as i32), &row.to_string(), &label.to_string(), &vector]).unwrap();
        }
        let text = format!(
            "kind = \"postgres\"\nurl = {address:?}\ntable = \"digits\"\nsource = \"source\"\nlabel = \"label\"\nvector = \"embedding\""
        );
        let (options, old) = (
            rehang_postgres::TableOptions {
                table: "digits".into(),
                source: Some("source".into()),
                label: Some("label".into()),
                vector: Some("embedding".into()),
                ..rehang_postgres::TableOptions::default()
            },
            self.old_space(),
        );
        let store =
            rehang_postgres::PostgresStore::adopt(address, &options, Some(&old.name), &|_, _| true).unwrap();
        store.create_space(&old, Provenance::Old).unwrap();
        self.upgraded(folder, &text, pairs)
    }

    fn old_space(&self) -> Space {
        Space::new("old-model", self.old.columns(), Distance::L2, false)
    }

    fn upgraded(&self, folder: &Path, gallery: &str, pairs: usize) -> PathBuf {
        let old = self.old_space();
        let space = |space: &Space, key: &str| {
            format!(
                "[{key}]\nname = \"{}\"\ndimension = {}\ndistance = \"l2\"\n",
                space.name, space.dimension
            )
        };
        let text = format!(
            "[gallery]\n{gallery}\n{}{}[order]\npolicy = \"sigma\"\n[run]\nbatch = 50\n",
            space(&old, "old"),
            space(&self.space, "new")
        );
        let config = folder.join("rehang.toml");
        fs_err::write(&config, text).unwrap();
        let upgrade = Upgrade::open(&config).unwrap();
        let asked = PairsOptions { items: pairs, worth: 0.0, ..PairsOptions::default() };
        upgrade.pairs(&asked, &PairsFiles::default(), Some(self), &Unobserved).unwrap();
        upgrade.fit(Method::Ridge, None, &Progress::default()).unwrap();
        upgrade.report(&Progress::default()).unwrap();
        upgrade.start(&Unobserved).unwrap();
        upgrade.switch(Some(Serving::Mixed), true).unwrap();
        config
    }

    /// Returns the mAP of searches by the new model where all is native.
    fn end(&self) -> f64 {
        let relevance = Relevance::Labels { gallery: &self.labels, queries: None };
        let options = CurveOptions { metrics: vec![MAP], ..CurveOptions::default() };
        evaluate(&self.new, None, relevance, Distance::L2, &options, &Progress::default()).unwrap().values
            [MAP]
    }
}

impl Encoder for Digits {
    fn space(&self) -> &Space {
        &self.space
    }

    fn batch_max(&self) -> usize {
        1000
    }

    fn encode(&self, inputs: &[Input<'_>]) -> Result<Vec<Result<Vec<f32>, ItemFailure>>> {
        Ok(inputs.iter().map(|input| Ok(self.new.row(input.source.parse().unwrap()).to_vec())).collect())
    }

    fn fingerprint(&self) -> Result<Option<String>> {
        Ok(Some("the demo's new model".into()))
    }

    fn spent(&self) -> Spent {
        Spent::default()
    }
}

/// Returns the forecast's own words where other items ask than before.
fn said(forecast: &Forecast) -> Option<String> {
    let more_queries = forecast.findings.iter().find(|finding| finding.code == FindingCode::MoreQueries);
    more_queries.map(|finding| finding.seen.clone())
}

fn forecast(upgrade: &Upgrade) -> Forecast {
    upgrade.forecast().unwrap().unwrap()
}

fn run(upgrade: &Upgrade, digits: &Digits, share: f64) -> usize {
    let until = RunOptions { until: Some(Until::Fraction(share)), ..RunOptions::default() };
    upgrade.run(&until, Some(digits), &Unobserved).unwrap().refits.iter().filter(|refit| refit.taken).count()
}

/// Returns the items that a report is measured on.
fn asked(upgrade: &Upgrade) -> BTreeSet<String> {
    upgrade.report(&Progress::default()).unwrap().asked.into_iter().collect()
}

#[test]
fn the_same_items_ask_after_a_refit_though_the_worst_are_native_first() {
    let (digits, folder) = (Digits::read(), tempfile::tempdir().unwrap());
    let config = digits.begun(folder.path(), 500);
    the_same_items_ask(&digits, &config);
}

#[cfg(feature = "postgres")]
#[test]
fn the_same_items_ask_in_a_table() {
    let Some(server) = crate::server::server() else { return };
    let (digits, folder) = (Digits::read(), tempfile::tempdir().unwrap());
    let config = digits.begun_in_a_table(folder.path(), &server.database(), 500);
    the_same_items_ask(&digits, &config);
}

#[test]
fn three_machines_need_the_configuration_alone() {
    let (digits, folder) = (Digits::read(), tempfile::tempdir().unwrap());
    let config = digits.begun(folder.path(), 500);
    three_machines_take_turns(&digits, &config);
}

#[cfg(feature = "postgres")]
#[test]
fn three_machines_need_the_configuration_alone_for_a_table() {
    let Some(server) = crate::server::server() else { return };
    let (digits, folder) = (Digits::read(), tempfile::tempdir().unwrap());
    let config = digits.begun_in_a_table(folder.path(), &server.database(), 500);
    three_machines_take_turns(&digits, &config);
}

/// Takes the verbs of an upgrade in turn by three handles, each with its configuration in a folder of its
/// own.
fn three_machines_take_turns(digits: &Digits, config: &Path) {
    let path = config.with_file_name("G.db");
    let text =
        fs_err::read_to_string(config).unwrap().replace("\"G.db\"", &format!("\"{}\"", path.display()));
    let folders = [(); 3].map(|()| tempfile::tempdir().unwrap());
    let [first, second, third] = folders.each_ref().map(|folder| {
        let config = folder.path().join("rehang.toml");
        fs_err::write(&config, &text).unwrap();
        Upgrade::open(&config).unwrap()
    });
    let before = forecast(&third);
    let held = third.gallery();
    assert_eq!(run(&second, digits, 0.5), 1, "a refit was taken");
    assert_ne!(forecast(&third).source, before.source, "the new map's forecast is everybody's");
    // An application that was open before writes by the new map.
    let late = NewVector::from_model("old-model", digits.old.row(7).to_vec(), Provenance::Old);
    held.put(&[ItemWrite::new("100007", Some("7".into()), vec![late])]).unwrap();
    assert_eq!(first.store().counts("new-model").unwrap().lacking, 0);
    assert_eq!(run(&first, digits, 0.6), 0, "and anybody runs on by it");
    // A map that one of them fits meanwhile is nobody's until a start plans with it.
    let in_use = Recorded::expect(first.store()).unwrap().record.adapter;
    third.fit(Method::Procrustes, None, &Progress::default()).unwrap();
    run(&first, digits, 0.65);
    assert_eq!(Recorded::expect(second.store()).unwrap().record.adapter, in_use);
    let next = third.next(&AutoOptions::default(), false).unwrap();
    assert_eq!(next, Next::Step(Step::Start), "which is told");

    second.rollback().unwrap();
    let spaces = (digits.old_space(), digits.space.clone());
    let weight = Matrix::from_fn(spaces.0.dimension, spaces.1.dimension, |row, column| {
        f32::from(u8::from(row == column % spaces.0.dimension))
    });
    let map = Map::from_layers(
        InputScaling::AsIs,
        vec![Dense { weight, bias: vec![0.0; spaces.0.dimension], relu: false }],
    );
    let bridge = Bridge {
        old: spaces.0.clone(),
        new: spaces.1.clone(),
        map,
        share: 0.5,
        length: 1.0,
        training: Training::default(),
    };
    set_bridge(third.store(), &spaces.0, &spaces.1, Some(&bridge)).unwrap();
    let [old, new] = [&digits.old, &digits.new].map(|rows| rows.select(&[1, 2, 3]));
    let queries = [("old-model", &old), ("new-model", &new)];
    let searched = |upgrade: &Upgrade| upgrade.gallery().search(&queries, 9, &Filter::default()).unwrap();
    assert!(searched(&first).bridged && searched(&second) == searched(&first));
    first.switch(Some(Serving::Mixed), true).unwrap();
    let answers = [&first, &second, &third].map(searched);
    assert!(!answers[0].bridged && answers.iter().all(|answer| *answer == answers[0]));
    run(&second, digits, 1.0);
    third.finish(true, &Unobserved).unwrap();
    for folder in &folders {
        let names = fs_err::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(names.collect::<Vec<_>>(), ["rehang.toml"]);
    }
}

/// Held-out pairs ask the whole gallery, and what they find decides how searches are served after a switch.
#[test]
fn a_switch_serves_what_the_fit_has_proven_to_find_more() {
    let digits = Digits::read();
    for (items, method, expected) in
        [(250, Method::Procrustes, Serving::Either), (400, Method::Ridge, Serving::Mixed)]
    {
        let folder = tempfile::tempdir().unwrap();
        let upgrade = Upgrade::open(&digits.begun(folder.path(), items)).unwrap();
        upgrade.rollback().unwrap();
        let choice = upgrade.fit(method, None, &Progress::default()).unwrap().fitted.fusion.unwrap();
        assert_eq!(choice.others, digits.labels.len() - items);
        assert_eq!(choice.is_above_mixed, expected == Serving::Either, "{choice:?}");
        upgrade.start(&Unobserved).unwrap();
        let serving = |asked| upgrade.switch(asked, true).unwrap().0.serving_as;
        assert_eq!((serving(None), upgrade.status(0).unwrap().serving_as), (expected, expected));
        assert_eq!(serving(Some(Serving::Fused)), Serving::Fused);
        assert_eq!(serving(Some(Serving::Mixed)), Serving::Mixed);
    }
}

#[test]
fn the_folder_of_an_earlier_version_is_taken_in_once() {
    let (digits, folder) = (Digits::read(), tempfile::tempdir().unwrap());
    let config = digits.begun(folder.path(), 200);
    let upgrade = Upgrade::open(&config).unwrap();
    let (files, before) = (Files::in_ledger(upgrade.store()), forecast(&upgrade));
    // The folder is as that version left it.
    let of_before = config.with_extension("upgrade");
    fs_err::create_dir(&of_before).unwrap();
    for name in files.names().unwrap() {
        fs_err::write(of_before.join(&name), files.read(&name).unwrap().unwrap()).unwrap();
    }
    fs_err::write(of_before.join("notes.txt"), "somebody's own").unwrap();
    rusqlite::Connection::open(config.with_file_name("G.db"))
        .unwrap()
        .execute("DELETE FROM document WHERE name = 'files' OR name LIKE 'chunk %'", [])
        .unwrap();
    assert!(upgrade.forecast().is_err(), "the map is gone");
    drop(upgrade);
    let upgrade = Upgrade::open(&config).unwrap();
    assert_eq!(forecast(&upgrade), before);
    assert!(!Files::in_ledger(upgrade.store()).has("notes.txt").unwrap());
    // A file that is cleared away later does not come back from the folder.
    Files::in_ledger(upgrade.store()).retain(|_| false).unwrap();
    assert!(Upgrade::open(&config).unwrap().forecast().is_err());
}

fn the_same_items_ask(digits: &Digits, config: &Path) {
    let upgrade = Upgrade::open(config).unwrap();
    let (before, asked_before) = (forecast(&upgrade), asked(&upgrade));
    assert!((80..120).contains(&before.items), "{before:?}");
    // Floors of an application stand beside the forecast, and may be asked for at any time.
    let floors = upgrade.thresholds(&[], &Progress::default()).unwrap();
    // JSON may change the last digit of a number.
    let read: Floors = serde_json::from_str(&serde_json::to_string(&floors).unwrap()).unwrap();
    assert_eq!(before.floors.as_ref(), Some(&read));
    assert_eq!((floors.rows.len(), floors.queries, floors.natives), (2, before.items, before.items));
    let floor = floors.rows[0].today;
    let own = upgrade.thresholds(&[floor], &Progress::default()).unwrap();
    assert_eq!(own.rows, floors.rows[..1]);
    assert!(upgrade.thresholds(&[f64::NAN], &Progress::default()).is_err());
    assert_eq!(run(&upgrade, digits, 0.5), 1, "a refit was taken");
    // A fifth would be held out of all that is native by now.
    assert_eq!(run(&upgrade, digits, 0.95), 0);
    let refitted = forecast(&upgrade);
    assert_ne!(refitted.source, before.source, "the new map has a forecast of its own");
    assert_eq!(asked(&upgrade), asked_before);
    for after in [refitted, forecast(&upgrade)] {
        assert_eq!((after.items, after.do_nothing), (before.items, before.do_nothing));
        let (low, high) = after.range_at(1.0).unwrap();
        let end = digits.end();
        assert!(low <= end && end <= high, "{end} {after:?}");
        assert_eq!(said(&after), None);
    }
    // More pairs are drawn where somebody asks for more.
    let more = PairsOptions { items: 1000, worth: 0.0, ..PairsOptions::default() };
    upgrade.pairs(&more, &PairsFiles::default(), Some(digits), &Unobserved).unwrap();
    assert!(asked_before.is_subset(&asked(&upgrade)) && forecast(&upgrade).items > 150);
}

#[test]
fn where_few_ask_those_kept_for_measuring_take_over_and_it_is_said() {
    let (digits, folder) = (Digits::read(), tempfile::tempdir().unwrap());
    let config = digits.begun(folder.path(), 320);
    let upgrade = Upgrade::open(&config).unwrap();
    let before = forecast(&upgrade);
    assert!(before.items < 70 && said(&before).is_none(), "{before:?}");
    assert!(run(&upgrade, &digits, 0.5) > 0);
    let after = forecast(&upgrade);
    let moved = said(&after).unwrap_or_else(|| panic!("{after:?}"));
    assert!(
        moved.starts_with(&format!("{} items ask here, and {} asked", after.items, before.items)),
        "{moved}"
    );
    assert!(after.items > before.items, "{after:?}");
    // All items are asked, in another order.
    let moved = |of: &Forecast| (of.do_nothing.unwrap() - before.do_nothing.unwrap()).abs();
    assert!(moved(&after) < 1e-9);
    // From then on the items stay, and nothing is left to say.
    run(&upgrade, &digits, 0.95);
    upgrade.report(&Progress::default()).unwrap();
    let last = forecast(&upgrade);
    let (low, high) = last.range_at(1.0).unwrap();
    assert_eq!((last.items, said(&last)), (after.items, None));
    assert!(moved(&last) < 1e-9);
    assert!(low <= digits.end() && digits.end() <= high);
}
