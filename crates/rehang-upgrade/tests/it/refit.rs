//! Tests of a map that learns while the gallery is re-embedded: it is asked about by the rule alone, a refit
//! goes on after any death, and none comes where it is switched off.

use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock};
use std::thread;

use rehang_core::finding::{Finding, FindingCode};
use rehang_core::{Adapter, Distance, Matrix, Progress, Provenance, Result, Space, Vectors, adapter};
use rehang_encode::{Encoder, Input, ItemFailure, Spent};
use rehang_fit::Method;
use rehang_sqlite::SqliteStore;
use rehang_store::{Files, Filter, ItemWrite, Ledger, NewVector, Scan, Select, VectorRecord};
use rehang_upgrade::{
    Ending, Gallery, Observation, Observer, PairsFiles, PairsOptions, Phase, Place, Recorded, RefitStage,
    Request, RunOptions, Serving, Unobserved, Until, Upgrade, examine, refits,
};

use crate::common::{DieAt, snapshot};

const ITEMS: usize = 1000;
/// Number of pairs, which are few for so many coordinates: a map of them is poor.
const PAIRS: usize = 40;
const WIDTH: usize = 16;

/// Returns a number in [−1, 1) from a text and a place.
fn feature(text: &str, place: usize) -> f32 {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ (place as u64).wrapping_mul(0xff51_afd7_ed55_8ccd);
    for byte in text.bytes() {
        state = (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        state ^= state >> 29;
    }
    state = state.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    ((state >> 40) as f32 / (1u64 << 23) as f32) - 1.0
}

/// Returns the length of a source's vectors: the number behind "loud" where the source begins so,
/// otherwise 1.
fn loudness(source: &str) -> f32 {
    let loud = source.strip_prefix("loud ").and_then(|rest| rest.split(' ').next());
    loud.map_or(1.0, |loud| loud.parse().unwrap())
}

fn old_model(source: &str) -> Vec<f32> {
    (0..WIDTH).map(|place| loudness(source) * feature(source, place)).collect()
}

/// Encoder of the new model: a linear map of the old one's vectors, and so much of its own.
struct NewModel {
    space: Space,
    own: f32,
}

impl NewModel {
    fn with(own: f32) -> Self {
        Self { space: Space::new("new-model", WIDTH, Distance::L2, false), own }
    }

    fn vector(&self, source: &str) -> Vec<f32> {
        let old = old_model(source);
        // The model has so much more of its own for sources that it was not trained for.
        let own = if source.starts_with("strange") { 8.0 * self.own } else { loudness(source) * self.own };
        let mixed = |row: usize| {
            let sum: f32 = (0..WIDTH).map(|column| feature("map", WIDTH * row + column) * old[column]).sum();
            sum + own * feature(source, 100 + row)
        };
        (0..WIDTH).map(mixed).collect()
    }
}

impl Encoder for NewModel {
    fn space(&self) -> &Space {
        &self.space
    }

    fn batch_max(&self) -> usize {
        1000
    }

    fn encode(&self, inputs: &[Input<'_>]) -> Result<Vec<Result<Vec<f32>, ItemFailure>>> {
        Ok(inputs.iter().map(|input| Ok(self.vector(input.source))).collect())
    }

    fn fingerprint(&self) -> Result<Option<String>> {
        Ok(Some(format!("the new model {}", self.own)))
    }

    fn spent(&self) -> Spent {
        Spent::default()
    }
}

/// Makes a gallery that is filled by a map of its own pairs, and switched, in a folder with its
/// configuration.
fn begun(folder: &Path, model: &NewModel) -> PathBuf {
    begun_by(Method::Ridge, folder, model)
}

fn begun_by(method: Method, folder: &Path, model: &NewModel) -> PathBuf {
    begun_with(PAIRS, method, folder, model)
}

/// Returns an item with its old vector alone, as an application writes it.
fn write_of(id: String, source: String) -> ItemWrite {
    let vectors = vec![NewVector::from_model("old-model", old_model(&source), Provenance::Old)];
    ItemWrite::new(id, Some(source), vectors)
}

fn begun_with(pairs: usize, method: Method, folder: &Path, model: &NewModel) -> PathBuf {
    begun_of(pairs, method, folder, model, |item| format!("source {item}"))
}

fn begun_of(
    pairs: usize,
    method: Method,
    folder: &Path,
    model: &NewModel,
    source: impl Fn(usize) -> String,
) -> PathBuf {
    let old = Space::new("old-model", WIDTH, Distance::L2, false);
    let store = SqliteStore::create(folder.join("G.db")).unwrap();
    store.create_space(&old, Provenance::Old).unwrap();
    let write = |item: usize| write_of(format!("{item}"), source(item));
    store.put(&(0..ITEMS).map(write).collect::<Vec<_>>()).unwrap();
    drop(store);
    let space =
        |name: &str| format!("[{name}]\nname = \"{name}-model\"\ndimension = {WIDTH}\ndistance = \"l2\"\n");
    let text = format!("[gallery]\npath = \"G.db\"\n{}{}[run]\nbatch = 10\n", space("old"), space("new"));
    let config = folder.join("rehang.toml");
    fs_err::write(&config, text).unwrap();
    let upgrade = Upgrade::open(&config).unwrap();
    let asked = PairsOptions { items: pairs, worth: 0.0, ..PairsOptions::default() };
    upgrade.pairs(&asked, &PairsFiles::default(), Some(model), &Unobserved).unwrap();
    upgrade.fit(method, None, &Progress::default()).unwrap();
    upgrade.start(&Unobserved).unwrap();
    upgrade.switch(Some(Serving::Mixed), true).unwrap();
    config
}

fn until(share: f64) -> RunOptions {
    RunOptions { until: Some(Until::Fraction(share)), ..RunOptions::default() }
}

fn map_of(upgrade: &Upgrade) -> Adapter {
    let fingerprint = Recorded::expect(upgrade.store()).unwrap().record.adapter;
    let bytes =
        Files::in_ledger(upgrade.store()).read(&format!("adapter-{fingerprint}.safetensors")).unwrap();
    rehang_files::adapter_file::from_bytes(&bytes.unwrap(), "the map").unwrap()
}

/// Whether a map made an adapted vector and its σ²; a product of one row and that of a page may round
/// otherwise.
fn is_of(map: &Adapter, source: &str, there: &VectorRecord) -> bool {
    let rows = Matrix::new(WIDTH, old_model(source)).unwrap();
    let old = Vectors::new(map.old.clone(), rows, "old vectors").unwrap();
    let mapped = adapter::apply(map, &old, None, &Progress::default()).unwrap();
    let (row, variance) = (mapped.vectors.matrix().row(0), mapped.variance[0]);
    let sigma2 = there.sigma2.unwrap();
    rehang_core::squared_distance(&there.vector, row) < 1e-8 && (sigma2 - variance).abs() < 1e-3 * variance
}

/// Checks that the map of the record is the upgrade's own, that it made every adapted vector, and the new
/// model every native one. Returns the record's map.
fn check(upgrade: &Upgrade, model: &NewModel) -> String {
    let (store, record) = (upgrade.store(), Recorded::expect(upgrade.store()).unwrap().record);
    assert_eq!((record.phase, record.refitting), (Phase::Filled, false));
    let map = map_of(upgrade);
    assert!((record.handicap - map.handicap).abs() < 1e-12);
    let planned = upgrade.configuration().planned(store).unwrap();
    assert_eq!(planned.adapter.as_deref(), Some(&map), "verbs go by the map in use");
    let scan = Scan::new("new-model", Select::All, 2 * ITEMS).with_vectors_of("new-model");
    let records = store.scan(&scan).unwrap();
    assert_eq!(records.len(), ITEMS);
    for found in records {
        let source = found.item.source.unwrap();
        let there = found.vector.unwrap_or_else(|| panic!("{source} is lost to searches"));
        if there.provenance == Provenance::Native {
            assert_eq!(there.vector, model.vector(&source));
            continue;
        }
        assert!(is_of(&map, &source, &there), "{source} is of another map");
    }
    record.adapter
}

#[test]
fn a_map_of_few_pairs_is_fitted_again_on_what_is_native_and_the_forecast_with_it() {
    let (folder, model) = (tempfile::tempdir().unwrap(), NewModel::with(0.5));
    let config = begun(folder.path(), &model);
    let upgrade = Upgrade::open(&config).unwrap();
    let first = check(&upgrade, &model);
    // A person cannot ask either before there is something to measure on.
    assert!(upgrade.refit(&Progress::default()).unwrap_err().is_conflict());
    let epoch = Recorded::expect(upgrade.store()).unwrap().record.epoch;
    // Up to here no question comes, and nothing is kept for one.
    assert_eq!(upgrade.run(&until(0.05), Some(&model), &Unobserved).unwrap().refits, []);
    assert_eq!(
        (check(&upgrade, &model), refits(upgrade.store(), "new-model").unwrap()),
        (first.clone(), vec![])
    );

    let run = upgrade.run(&until(0.1), Some(&model), &Unobserved).unwrap();
    assert_eq!((run.summary.ending, run.summary.native), (Ending::ReachedFraction, 100));
    let [refit] = &run.refits[..] else { panic!("{:?}", run.refits) };
    assert!(refit.taken && refit.gain.fall() > 0.05, "{refit:?}");
    assert_eq!((refit.asked_at, &refit.before, refit.native), (Some(0.1), &first, 100));
    // A fifth of all items is never fitted on, the items among them that are kept for measuring.
    assert!(refit.gain.items >= 30 && refit.pairs > PAIRS && refit.pairs < 100 - refit.gain.items + 1);
    assert_eq!(check(&upgrade, &model), refit.after);
    assert!(Recorded::expect(upgrade.store()).unwrap().record.epoch > epoch);
    let shown = upgrade.status(0).unwrap().refits;
    assert_eq!((shown.len(), &shown[0].after, shown[0].gain.items), (1, &refit.after, refit.gain.items));

    // A second question comes at 40 %, and learns from everything that is native by then.
    let run = upgrade.run(&until(0.5), Some(&model), &Unobserved).unwrap();
    let [again] = &run.refits[..] else { panic!("{:?}", run.refits) };
    assert_eq!((again.asked_at, &again.before), (Some(0.4), &refit.after));
    assert!(again.gain.before < refit.gain.before && again.pairs > refit.pairs);
    let now = if again.taken { &again.after } else { &again.before };
    assert_eq!(check(&upgrade, &model), *now);
    // Each map has a forecast of its own, and the forecast of the map before is kept.
    let has_report =
        |map: &str| Files::in_ledger(upgrade.store()).has(&format!("report-{map}.json")).unwrap();
    assert!(has_report(&refit.after) && has_report(now));
    // A person may ask at any time, and is answered by the same rule.
    let asked = upgrade.refit(&Progress::default()).unwrap();
    assert_eq!((asked.asked_at, asked.taken), (None, asked.gain.pays()));
    check(&upgrade, &model);
    // The run goes on to the end, where nothing adapted is left to ask for.
    let run = upgrade.run(&RunOptions::default(), Some(&model), &Unobserved).unwrap();
    assert_eq!((run.summary.native, run.refits), (ITEMS as u64, vec![]));
    upgrade.finish(true, &Unobserved).unwrap();
}

#[test]
fn a_question_that_nothing_new_could_answer_is_not_asked() {
    let (folder, model) = (tempfile::tempdir().unwrap(), NewModel::with(0.5));
    // The pairs are a quarter of the gallery.
    let config = begun_with(ITEMS / 4, Method::Ridge, folder.path(), &model);
    let upgrade = Upgrade::open(&config).unwrap();
    let first = check(&upgrade, &model);
    let run = upgrade.run(&until(0.28), Some(&model), &Unobserved).unwrap();
    assert_eq!((run.summary.native, run.refits), (280, vec![]));
    assert_eq!(refits(upgrade.store(), "new-model").unwrap(), []);
    let run = upgrade.run(&until(0.4), Some(&model), &Unobserved).unwrap();
    let [asked] = &run.refits[..] else { panic!("{:?}", run.refits) };
    assert_eq!((asked.asked_at, &asked.before), (Some(0.4), &first));
    assert!(4 * asked.pairs > 5 * 250 * 4 / 5, "{asked:?}");
    check(&upgrade, &model);
}

#[test]
fn a_gallery_that_an_application_holds_follows_a_refit() {
    // The new model has so much of its own that the map before has a handicap already.
    let (folder, model) = (tempfile::tempdir().unwrap(), NewModel::with(2.0));
    let config = begun(folder.path(), &model);
    let upgrade = Upgrade::open(&config).unwrap();
    let held = upgrade.gallery();
    let written = |id: &str| {
        let source = format!("written {id}");
        held.put(&[write_of(id.into(), source.clone())]).unwrap();
        let item = upgrade.store().get(&[id]).unwrap().remove(0).unwrap();
        let there = upgrade.store().vectors("new-model", &[item.key]).unwrap().remove(0);
        there.is_some_and(|there| is_of(&map_of(&upgrade), &source, &there))
    };
    assert!(written("before"));
    let before = (map_of(&upgrade), held_searches(&held, &model));

    let run = upgrade.run(&until(0.4), Some(&model), &Unobserved).unwrap();
    assert!(run.refits.iter().any(|refit| refit.taken), "{:?}", run.refits);
    let map = map_of(&upgrade);
    assert!(map != before.0 && (map.handicap - before.0.handicap).abs() > 1.0, "another handicap too");
    assert!(written("after"), "the handle from before writes by the new map");
    // The handle searches by the new map as well: like one that is opened now, and as distances say that are
    // computed one by one.
    let found = held_searches(&held, &model);
    assert_eq!(found, held_searches(&upgrade.gallery(), &model));
    assert_ne!(found, before.1);
    let query = model.vector("a query");
    for (id, distance) in found {
        let item = upgrade.store().get(&[id.as_str()]).unwrap().remove(0).unwrap();
        let there = upgrade.store().vectors("new-model", &[item.key]).unwrap().remove(0).unwrap();
        let plain = rehang_core::squared_distance(&query, &there.vector);
        let farther = if there.provenance == Provenance::Native { 0.0 } else { map.handicap };
        assert!((f64::from(distance) - plain - farther).abs() < 1e-3, "{id}: {distance} {plain} {farther}");
    }
}

/// Returns the first 30 items that a gallery finds, with their distances.
fn held_searches(gallery: &Gallery, model: &NewModel) -> Vec<(String, f32)> {
    let [old, new] =
        [old_model("a query"), model.vector("a query")].map(|query| Matrix::new(WIDTH, query).unwrap());
    let answer = gallery.search(&[("old-model", &old), ("new-model", &new)], 30, &Filter::default()).unwrap();
    answer.found[0].iter().map(|found| (found.id.clone(), found.distance)).collect()
}

/// A gallery grows while the upgrade is filled, by items of another kind, and more of them than were there.
#[test]
fn a_gallery_that_has_grown_into_something_else_is_said_to_have_drifted() {
    let (folder, model) = (tempfile::tempdir().unwrap(), NewModel::with(0.5));
    // There are enough pairs that some are held out to compare with.
    let config = begun_with(200, Method::Ridge, folder.path(), &model);
    let upgrade = Upgrade::open(&config).unwrap();
    let strange: Vec<_> =
        (0..2 * ITEMS).map(|item| write_of(format!("s{item}"), format!("strange {item}"))).collect();
    upgrade.gallery().put(&strange).unwrap();
    // New items are re-embedded first; the items that are kept for measuring are still native by the
    // question.
    let run = upgrade.run(&until(0.15), Some(&model), &Unobserved).unwrap();
    let [refit] = &run.refits[..] else { panic!("{:?}", run.refits) };
    assert_eq!((refit.asked_at, refit.items), (Some(0.1), 3 * ITEMS as u64));
    let expected = refit.expected.unwrap();
    assert!(refit.gain.error_before().has_drifted_from(&expected), "{refit:?}");
    let drift = refit.drift().unwrap();
    assert!(run.findings.contains(&drift), "{:?}", run.findings);
    // A status says it for as long as no refit has answered to it.
    let shown = upgrade.status(0).unwrap().findings;
    let says = |code: FindingCode| shown.iter().any(|finding| finding.code == code);
    assert_eq!(says(FindingCode::GalleryDrift), !refit.taken, "{refit:?} {shown:?}");
    let scale = if refit.taken { refit.sigma_after } else { refit.sigma_before };
    assert_eq!(says(FindingCode::SigmaScale), scale.is_off());
    // Both findings rest on items of either kind, as the gallery has them.
    assert!(refit.gain.items >= 100 && scale.high > scale.low);
}

#[test]
fn what_a_gallery_has_grown_into_is_said_before_anything_is_paid() {
    let (folder, model) = (tempfile::tempdir().unwrap(), NewModel::with(0.5));
    let place = folder.path().join("loud");
    fs_err::create_dir(&place).unwrap();
    // The louder an item is, the less a map knows of it, and σ² learns that.
    let loud = |item: usize, from: f32| format!("loud {} {item}", from + item as f32 / 1000.0);
    let config = begun_of(400, Method::Ridge, &place, &model, |item| loud(item, 0.5));
    let upgrade = Upgrade::open(&config).unwrap();
    let drift = |findings: &[Finding]| {
        findings.iter().find(|finding| finding.code == FindingCode::GalleryDrift).cloned()
    };
    let said = || {
        let plan = drift(&upgrade.plan(0).unwrap().findings());
        assert_eq!(plan, drift(&upgrade.start(&Unobserved).unwrap().findings));
        let own = upgrade.configuration();
        assert_eq!(plan, drift(&examine(&own.gallery, Some(own), false).unwrap().findings));
        plan
    };
    let quiet = Progress::default();
    let drawn = folder.path().join("pairs");
    let draw = || {
        let asked = PairsOptions { items: 400, worth: 0.0, ..PairsOptions::default() };
        let files = PairsFiles { folder: Some(&drawn), ..PairsFiles::default() };
        upgrade.pairs(&asked, &files, Some(&model), &Unobserved).unwrap()
    };
    assert_eq!(draw().pairs, 400);
    assert_eq!(said(), None, "the gallery is what the pairs were drawn from");
    assert_eq!(drift(&upgrade.report(&quiet).unwrap().findings), None);
    let more = |item: usize| write_of(format!("more {item}"), loud(item, 2.0));
    upgrade.gallery().put(&(0..600).map(more).collect::<Vec<_>>()).unwrap();
    // Expected numbers are computed one item at a time.
    let map = map_of(&upgrade);
    let sigma = |source: &str| {
        let old = Matrix::new(WIDTH, old_model(source)).unwrap();
        let old = Vectors::new(map.old.clone(), old, "old vectors").unwrap();
        f64::from(adapter::apply(&map, &old, None, &quiet).unwrap().variance[0])
    };
    let ids = fs_err::read_to_string(drawn.join("ids.txt")).unwrap();
    let ids: Vec<usize> = ids.lines().map(|id| id.parse().unwrap()).collect();
    let is_held_out =
        rehang_files::read_labels(&rehang_files::VectorSource::path(drawn.join("held-out.npy"))).unwrap();
    let held_out: Vec<f64> = ids
        .iter()
        .zip(is_held_out)
        .filter(|(_, held_out)| *held_out == 1)
        .map(|(&item, _)| sigma(&loud(item, 0.5)))
        .collect();
    let others = (0..ITEMS).filter(|item| !ids.contains(item)).map(|item| loud(item, 0.5));
    let others: Vec<f64> =
        others.chain((0..600).map(|item| loud(item, 2.0))).map(|source| sigma(&source)).collect();
    let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len() as f64;
    let expected = [("expected_times", mean(&others) / mean(&held_out)), ("share", 1200.0 / 1600.0)];
    let drift = said().unwrap();
    assert_eq!(drift.next, Some(rehang_core::Remedy::DrawPairs));
    for ((name, value), (known, expected)) in drift.evidence.iter().zip(expected) {
        assert!(name == known && (value - expected).abs() < 1e-4 * expected, "{drift:?} {expected}");
    }
    // Doing what the finding says helps.
    draw();
    upgrade.fit(Method::Ridge, None, &quiet).unwrap();
    assert_eq!(said(), None);
}

#[test]
fn a_map_that_nothing_could_better_stays_and_so_does_every_byte() {
    // The map learns nothing, from however many pairs.
    let (folder, model) = (tempfile::tempdir().unwrap(), NewModel::with(0.5));
    let config = begun_by(Method::DoNothing, folder.path(), &model);
    let upgrade = Upgrade::open(&config).unwrap();
    let first = check(&upgrade, &model);
    let epoch = Recorded::expect(upgrade.store()).unwrap().record.epoch;
    let run = upgrade.run(&until(0.5), Some(&model), &Unobserved).unwrap();
    let [kept] = &run.refits[..] else { panic!("{:?}", run.refits) };
    assert!(!kept.taken && kept.before == first, "{kept:?}");
    assert_eq!(check(&upgrade, &model), first);
    assert_eq!(Recorded::expect(upgrade.store()).unwrap().record.epoch, epoch);
    // The question is not asked again.
    assert_eq!(upgrade.run(&until(0.6), Some(&model), &Unobserved).unwrap().refits, []);
}

#[test]
fn without_refits_a_run_does_what_it_did() {
    let model = NewModel::with(0.5);
    let snapshots = [true, false].map(|switched_off| {
        let folder = tempfile::tempdir().unwrap();
        let config = begun(folder.path(), &model);
        let upgrade = Upgrade::open(&config).unwrap();
        let first = check(&upgrade, &model);
        if switched_off {
            let asked = RunOptions { no_refit: true, ..until(0.5) };
            let run = upgrade.run(&asked, Some(&model), &Unobserved).unwrap();
            assert!(run.refits.is_empty() && run.findings.is_empty());
        } else {
            // The loop runs alone, and knows of no refits.
            let planned = upgrade.configuration().planned(upgrade.store()).unwrap();
            let setup = rehang_upgrade::BackfillSetup {
                store: upgrade.store(),
                encoder: &model,
                scope: rehang_upgrade::BackfillScope::Gallery(planned.adapter.as_deref()),
                limits: upgrade.configuration().limits_of(&until(0.5), &model).unwrap(),
                clock: &rehang_upgrade::SystemClock::start(),
                worker: "alone",
            };
            rehang_upgrade::backfill(&setup, &Unobserved).unwrap();
        }
        assert_eq!(check(&upgrade, &model), first);
        assert_eq!(upgrade.store().document("refits of new-model").unwrap(), None);
        snapshot(upgrade.store())
    });
    assert_eq!(snapshots[0], snapshots[1]);
}

#[test]
fn whatever_a_refit_dies_of_the_next_run_goes_on_with_it() {
    let model = NewModel::with(0.5);
    let places = [
        (Place::RefitDecided, 1),
        (Place::RefitRecorded, 1),
        (Place::FillRead, 1),
        (Place::FillWritten, 1),
        (Place::PrioritiesWritten, 1),
        (Place::BeforeFilled, 1),
        (Place::AfterFilled, 1),
    ];
    for (place, visit) in places {
        let folder = tempfile::tempdir().unwrap();
        let config = begun(folder.path(), &model);
        let upgrade = Upgrade::open(&config).unwrap();
        let first = check(&upgrade, &model);
        let dying = DieAt::new(place, visit);
        let outcome = upgrade.run(&until(0.1), Some(&model), &dying);
        assert!(outcome.is_err() && dying.died(), "{place:?}: {outcome:?}");
        drop(upgrade);
        // At any such moment no item is lost to searches, and every vector in the space is of a map or of the
        // new model.
        let upgrade = Upgrade::open(&config).unwrap();
        let counts = upgrade.store().counts("new-model").unwrap();
        assert_eq!((counts.lacking, counts.native + counts.adapted), (0, ITEMS as u64));
        let there = refits(upgrade.store(), "new-model").unwrap();
        assert_eq!((there.len(), there[0].taken, &there[0].before), (1, true, &first), "{place:?}");
        // The next run has a little left to do, and goes on with the refit beside it.
        upgrade.run(&until(0.11), Some(&model), &Unobserved).unwrap();
        assert_eq!(refits(upgrade.store(), "new-model").unwrap(), there, "asked once, {place:?}");
        assert_eq!(check(&upgrade, &model), there[0].after, "{place:?}");
        let report = format!("report-{}.json", there[0].after);
        assert!(Files::in_ledger(upgrade.store()).has(&report).unwrap(), "no forecast after {place:?}");
    }
}

#[test]
fn a_rollback_and_a_start_settle_half_a_refit_too() {
    let model = NewModel::with(0.5);
    let folder = tempfile::tempdir().unwrap();
    let config = begun(folder.path(), &model);
    let upgrade = Upgrade::open(&config).unwrap();
    let dying = DieAt::new(Place::RefitRecorded, 1);
    assert!(upgrade.run(&until(0.1), Some(&model), &dying).is_err());
    assert!(Recorded::expect(upgrade.store()).unwrap().record.refitting);
    upgrade.rollback().unwrap();
    assert_eq!(upgrade.store().serving().unwrap().as_deref(), Some("old-model"));
    upgrade.switch(Some(Serving::Mixed), true).unwrap();
    assert!(Recorded::expect(upgrade.store()).unwrap().record.refitting, "nothing is forgotten");
    upgrade.start(&Unobserved).unwrap();
    let after = refits(upgrade.store(), "new-model").unwrap().remove(0).after;
    assert_eq!(check(&upgrade, &model), after);
}

#[test]
fn a_finish_makes_the_pages_that_a_dead_refit_left() {
    let model = NewModel::with(0.5);
    let folder = tempfile::tempdir().unwrap();
    let config = begun(folder.path(), &model);
    let upgrade = Upgrade::open(&config).unwrap();
    assert!(upgrade.run(&until(0.1), Some(&model), &DieAt::new(Place::RefitRecorded, 1)).is_err());
    let map = map_of(&upgrade);
    upgrade.finish(true, &Unobserved).unwrap();
    let scan =
        Scan::new("new-model", Select::Provenance(Provenance::Adapted), ITEMS).with_vectors_of("new-model");
    let records = upgrade.store().scan(&scan).unwrap();
    assert_eq!(records.len(), ITEMS - 100);
    for found in records {
        assert!(is_of(&map, &found.item.source.unwrap(), &found.vector.unwrap()));
    }
}

/// Observer that lets another process act when a refit comes to a stage, once.
struct AtStage<'a> {
    stage: RefitStage,
    act: &'a (dyn Fn() + Sync),
    acted: OnceLock<()>,
}

impl<'a> AtStage<'a> {
    fn new(stage: RefitStage, act: &'a (dyn Fn() + Sync)) -> Self {
        Self { stage, act, acted: OnceLock::new() }
    }
}

impl Observer for AtStage<'_> {
    fn observe(&self, observation: &Observation<'_>) {
        if let Observation::Refitting { refit } = observation
            && refit.stage == self.stage
        {
            self.acted.get_or_init(self.act);
        }
    }
}

#[test]
fn what_another_process_decides_ends_a_refit_and_what_is_next_goes_through() {
    let model = NewModel::with(0.5);
    for stage in RefitStage::ALL {
        for decision in ["pause", "stop", "rollback"] {
            let folder = tempfile::tempdir().unwrap();
            let config = begun(folder.path(), &model);
            let [upgrade, other] = [(); 2].map(|()| Upgrade::open(&config).unwrap());
            let first = check(&upgrade, &model);
            let act = || {
                let shown = other.status(0).unwrap().refitting;
                assert_eq!(shown.map(|shown| shown.stage), Some(stage));
                match decision {
                    "pause" => drop(other.request(Request::Pause).unwrap()),
                    "stop" => drop(other.request(Request::Stop).unwrap()),
                    _ => drop(other.rollback().unwrap()),
                }
            };
            let observer = AtStage::new(stage, &act);
            let run = upgrade.run(&until(0.1), Some(&model), &observer).unwrap();
            assert!(observer.acted.get().is_some(), "{stage:?}");
            // A decision from before the refit ended stays, and nothing beyond.
            let all = refits(upgrade.store(), "new-model").unwrap();
            let is_decided = stage > RefitStage::Adapting;
            assert_eq!((run.refits.len(), all.len()), (0, usize::from(is_decided)), "{stage:?} {decision}");
            let record = Recorded::expect(upgrade.store()).unwrap().record;
            assert!(is_decided || record.adapter == first);
            assert_eq!(upgrade.status(0).unwrap().refitting, None);
            // The advice holds: nothing is in the way of a finish, or of another switch.
            if decision == "rollback" {
                assert_eq!(upgrade.store().serving().unwrap().as_deref(), Some("old-model"));
                upgrade.switch(Some(Serving::Mixed), true).unwrap();
            }
            check(&upgrade, &model);
            upgrade.finish(true, &Unobserved).unwrap();
        }
    }
}

#[test]
fn a_start_and_a_finish_need_not_wait_for_a_refit() {
    let model = NewModel::with(0.5);
    for stage in [RefitStage::Fitting, RefitStage::Forecasting] {
        let folder = tempfile::tempdir().unwrap();
        let config = begun(folder.path(), &model);
        let [upgrade, other] = [(); 2].map(|()| Upgrade::open(&config).unwrap());
        thread::scope(|scope| {
            let (begin, wanted) = std::sync::mpsc::channel();
            let (begin, other) = (Mutex::new(begin), &other);
            let starting = scope.spawn(move || {
                wanted.recv().unwrap();
                other.start(&Unobserved).unwrap();
            });
            let act = || {
                begin.lock().unwrap().send(()).unwrap();
                // The start asks the refit to end.
                let document = || upgrade.store().document("refit under way of new-model").unwrap();
                while document().is_some_and(|(_, text)| !text.is_empty()) {
                    thread::yield_now();
                }
            };
            let observer = AtStage::new(stage, &act);
            upgrade.run(&until(0.1), Some(&model), &observer).unwrap();
            starting.join().unwrap();
        });
        check(&upgrade, &model);
    }
}

/// Two processes run at once: both come by the question, and one answer holds.
#[test]
fn of_two_workers_one_refits_and_the_other_goes_on_by_the_new_map() {
    /// Observer that lets both begin before either gets anywhere.
    struct Together(std::sync::Barrier, std::sync::atomic::AtomicBool);
    impl Observer for &Together {
        fn reach(&self, place: Place) -> Result<()> {
            if place == Place::BackfillClaimed && self.1.load(std::sync::atomic::Ordering::SeqCst) {
                self.0.wait();
                self.1.store(false, std::sync::atomic::Ordering::SeqCst);
            }
            Ok(())
        }
    }
    let (folder, model) = (tempfile::tempdir().unwrap(), NewModel::with(0.5));
    let config = begun(folder.path(), &model);
    let together = Together(std::sync::Barrier::new(2), std::sync::atomic::AtomicBool::new(true));
    let run = |upgrade: &Upgrade| {
        let run = upgrade.run(&until(0.5), Some(&model), &&together).unwrap();
        assert!(run.findings.is_empty(), "{:?}", run.findings);
        run.refits
    };
    let upgrades = [(); 2].map(|()| Upgrade::open(&config).unwrap());
    let answers = thread::scope(|scope| {
        let workers = upgrades.each_ref().map(|upgrade| scope.spawn(|| run(upgrade)));
        workers.map(|worker| worker.join().unwrap())
    });
    let all = refits(upgrades[0].store(), "new-model").unwrap();
    assert!(!all.is_empty() && all.len() <= 2, "{all:?}");
    assert_eq!(answers.iter().flatten().count(), all.len(), "each question is answered once: {answers:?}");
    let last = all.iter().rfind(|refit| refit.taken).unwrap();
    for upgrade in &upgrades {
        assert_eq!(check(upgrade, &model), last.after);
    }
}
