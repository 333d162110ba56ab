//! Upgrade as a configuration describes it: the handle that a face holds, with every verb as one call.

use std::cell::RefCell;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use rehang_clock::{Clock, SystemClock};
use rehang_core::curve::Metric;
use rehang_core::finding::{Finding, FindingCode};
use rehang_core::report::Floors;
use rehang_core::{Adapter, Error, Progress, Remedy, Result, Space};
use rehang_encode::{Encoder, Input, Spent};
use rehang_fit::{BridgeChoice, FitAnswer, Method, OrderChoice, Within};
use rehang_store::{Examined, Scan, Select, Store, expect_space, find_space};
use serde::Serialize;

use crate::auto_options::AutoOptions;
use crate::configuration::{Configuration, Planned};
use crate::kept::{self, Kind};
use crate::learn::asked::{self, Asked, ClicksKept};
use crate::learn::bridge::fit_bridge;
use crate::learn::fit;
use crate::learn::forecast::{Forecast, expect_worthwhile, share_of};
use crate::learn::outgrown::outgrown;
use crate::learn::pairs::{DrawnPairs, Enough, FIRST_SAMPLE, PAIRS_MAX, PairsDrawn, PairsOptions, PairsStep};
use crate::learn::refit::{self, Refit};
use crate::learn::refitting::{Refitted, Refitting};
use crate::learn::report::{self, UpgradeReport};
use crate::live::backfill::{Ending, Request, Tally};
use crate::live::encoding::input_of;
use crate::live::estimate::{CostEstimate, Probed, estimate, estimate_of, to_send};
use crate::live::first::{PutFirst, put_first, read_returned};
use crate::live::identity::{expect_same_on_account, put_back};
use crate::live::leftovers::Leftovers;
use crate::live::limits::{Limits, RunOptions};
use crate::live::manners;
use crate::live::refit_turn::make_way;
use crate::live::run::{BackfillScope, BackfillSetup, Summary, backfill_beside, backfill_compared};
use crate::live::sample;
use crate::live::spending;
use crate::live::until::Until;
use crate::live::watch::{CancellableObserver, watched_upgrade};
use crate::observe::{Observer, Unobserved};
use crate::places::location::{Location, UpgradeLock};
use crate::record::{BridgeInUse, OrderSettings, Phase, Recorded, Serving, UpgradeRecord};
use crate::serve::gallery::Gallery;
use crate::setup::{as_sentences, expect_between, expect_same};
use crate::status::{self, Status};
use crate::verbs::{self, FinishedUpgrade, Plan, RolledBack, Started, Switched};
use crate::way::{WayReason, Ways, misses_too_many};

/// Longest time that a start or a finish waits until a refit has made way.
const MAKES_WAY_WITHIN: Duration = Duration::from_secs(10);

/// Upgrade with its configuration and its gallery. It may be shared between threads and kept as long as a
/// process lives.
///
/// ```
/// fn may_be_kept<T: Send + Sync + 'static>() {}
/// may_be_kept::<rehang_upgrade::Upgrade>();
/// ```
pub struct Upgrade {
    configuration: Configuration,
    pub(crate) store: Arc<dyn Examined>,
}

impl Upgrade {
    /// Reads a configuration and opens its gallery.
    ///
    /// # Errors
    ///
    /// As [`Configuration::read`] and [`Configuration::open_gallery`].
    pub fn open(path: &Path) -> Result<Self> {
        Self::new(Configuration::read(path)?)
    }

    /// Opens the gallery of a configuration.
    ///
    /// # Errors
    ///
    /// As [`Configuration::open_gallery`].
    pub fn new(configuration: Configuration) -> Result<Self> {
        let store = configuration.open_gallery()?;
        kept::import_folder(&*store, &configuration.folder())?;
        Ok(Self { configuration, store })
    }

    /// Returns the configuration.
    pub fn configuration(&self) -> &Configuration {
        &self.configuration
    }

    /// Returns the gallery's store.
    pub fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// Returns the gallery's store as a handle that a caller may keep after this upgrade is dropped.
    pub fn shared_store(&self) -> Arc<dyn Store> {
        Arc::<dyn Examined>::clone(&self.store)
    }

    /// Returns the gallery that an application searches and writes through, at every stage of the upgrade.
    pub fn gallery(&self) -> Gallery {
        Gallery::new(self.shared_store())
    }

    /// Returns the new space as it is in the gallery, or as drawing pairs would make it.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub fn new_space(&self) -> Result<Space> {
        let stored = find_space(self.store(), &self.configuration.new.name)?;
        Ok(stored.map_or_else(|| self.configuration.made_space(), |stored| stored.space))
    }

    fn planned(&self) -> Result<Planned> {
        self.configuration.planned(self.store())
    }

    fn planned_ongoing(&self) -> Result<Planned> {
        self.configuration.planned_ongoing(self.store())
    }

    fn planned_plain(&self) -> Result<Planned> {
        self.configuration.planned_plain(self.store())
    }

    /// Returns the adapter of the upgrade, for work that only a map can do.
    fn map(&self) -> Result<Arc<Adapter>> {
        let missing = || Error::missing("an adapter", "what a map is asked for").advise(Remedy::FitPairs);
        self.planned()?.adapter.ok_or_else(missing)
    }

    /// Opens the encoder of the configuration, for the new space as it is in the gallery, or as the adapter
    /// would make it.
    ///
    /// # Errors
    ///
    /// As [`Configuration::open_encoder`] and [`Configuration::planned`].
    pub fn open_encoder(&self) -> Result<Box<dyn Encoder>> {
        let space = if let Some(stored) = find_space(self.store(), &self.configuration.new.name)? {
            stored.space
        } else {
            let record = UpgradeRecord::read(self.store())?;
            if self.configuration.has_adapter(self.store(), record.as_ref())? {
                self.configuration.planned_from(self.store(), record.as_ref())?.new
            } else {
                self.configuration.made_space()
            }
        };
        self.configuration.open_encoder(&space)
    }

    /// Returns what the upgrade would do, how long it takes, what it costs and what is forecast of it.
    /// Changes nothing. With `probe` above 0, so many items are embedded to measure the encoder's rate, which
    /// costs what embedding them costs.
    ///
    /// # Errors
    ///
    /// What [`Upgrade::start`] would fail with before its first write; what the encoder says.
    pub fn plan(&self, probe: usize) -> Result<Outlook> {
        let (probed, probe_failure) = self.probe(probe)?.unzip();
        // Nothing was measured where no item got a vector.
        let measured = probed.as_ref().filter(|probed| probed.failed < probed.items);
        let record = UpgradeRecord::read(self.store())?;
        let record = record.as_ref();
        let ways = self.ways_measured(record, &AutoOptions::default(), &PairsFiles::default(), measured)?;
        let is_open = !matches!(ways.because, WayReason::Asked | WayReason::Begun);
        let planned = if is_open && !self.configuration.has_adapter(self.store(), record)? {
            self.planned_plain()?
        } else {
            self.configuration.planned_from(self.store(), record)?
        };
        let outlook = self.outlook(&planned, probed.as_ref(), probe_failure.flatten())?;
        Ok(Outlook { ways: is_open.then_some(ways), ..outlook })
    }

    /// Returns the outlook of [`Upgrade::plan`] for one of the ways, after that was chosen.
    pub(crate) fn plan_of(&self, is_plain: bool) -> Result<Outlook> {
        let planned = if is_plain { self.planned_plain()? } else { self.planned()? };
        self.outlook(&planned, None, None)
    }

    fn outlook(
        &self,
        planned: &Planned,
        probed: Option<&Probed>,
        probe_failure: Option<String>,
    ) -> Result<Outlook> {
        let setup = planned.setup();
        let mut plan = verbs::plan(self.store(), &setup)?;
        plan.findings.extend(outgrown(self.store(), &setup)?);
        plan.findings.extend(self.configuration.outlook(self.store())?);
        let forecast = self.configuration.forecast(self.store(), planned)?;
        let measured = probed.filter(|probed| probed.failed < probed.items);
        let service = self.configuration.service();
        let limits = &self.configuration.limits;
        let mut estimate = estimate(self.store(), &setup, plan.to_embed, limits, service, measured)?;
        estimate.probed_items = probed.map(|probed| probed.items);
        estimate.failed = probed.map(|probed| probed.failed);
        let searches = self.store.foresee_searches(&planned.new)?;
        let without_source = plan.without_source as f64 / plan.old_counts.items.max(1) as f64;
        let lost_without_source = forecast
            .as_ref()
            .filter(|_| plan.without_source > 0)
            .map(|forecast| without_source * (forecast.at(1.0) - forecast.start));
        let order = planned.order;
        let ways = None;
        Ok(Outlook { ways, plan, order, estimate, searches, forecast, lost_without_source, probe_failure })
    }

    /// Estimates what all items of the gallery cost, by what is known before a run and by the record of the
    /// upgrade.
    pub(crate) fn cost_of_all(&self, record: &UpgradeRecord, planned: &Planned) -> Result<CostEstimate> {
        let (limits, service) = (&self.configuration.limits, self.configuration.service());
        let (store, setup) = (self.store(), planned.setup());
        let items = store.counts(&planned.new.name)?.items;
        let sent = to_send(store, &setup, items, service)?;
        estimate_of(store, Some(record), &setup, (items, sent), limits, service, None)
    }

    /// Embeds some items in batches like those of a run. Returns what that took, and why the first item
    /// without a vector has none.
    fn probe(&self, items: usize) -> Result<Option<(Probed, Option<String>)>> {
        if items == 0 {
            return Ok(None);
        }
        let encoder = self.open_encoder()?;
        manners::recall(self.store(), &self.configuration.new.name, encoder.as_ref())?;
        let records = self.store.scan(&Scan::new(&self.configuration.old.name, Select::All, items))?;
        let inputs: Vec<Input<'_>> = records.iter().filter_map(input_of).collect();
        if inputs.is_empty() {
            return Ok(None);
        }
        let limits = self.configuration.limits_of(&RunOptions::default(), encoder.as_ref())?;
        let clock = SystemClock::start();
        let (mut failed, mut why) = (0, None);
        for batch in inputs.chunks(limits.batch) {
            for failure in encoder.encode(batch)?.into_iter().filter_map(std::result::Result::err) {
                failed += 1;
                why.get_or_insert_with(|| failure.to_string());
            }
        }
        let measured = (inputs.len() - failed) as f64 * 1000.0 / (clock.now_ms().max(1)) as f64;
        let spent = encoder.spent();
        let probed = Probed {
            items: inputs.len() as u64,
            failed: failed as u64,
            items_per_second: measured * limits.workers as f64,
            tokens: spent.tokens,
            money: spent.money,
        };
        Ok(Some((probed, why)))
    }

    /// Draws pairs: embeds a random sample of the gallery with the new model, and doubles the sample until
    /// one more doubling is not worth it. The vectors are kept as natives of the new space, so that no item
    /// is paid for twice. With a `folder`, pairs are written there too: `old.npy`, `new.npy`, `ids.txt`,
    /// `held-out.npy` and, where items have labels, `labels.npy`.
    ///
    /// With `queries`, a file with one JSON object a line (`{"text": "…"}`, or `{"image": "FILE"}`), these
    /// are embedded by both models and kept. The choice of a method and the forecast then go by what people
    /// ask, and not by items as queries. Queries that a model refuses are left out. With `clicks`, they go by
    /// what people took from the answers: by nDCG@10.
    ///
    /// Drawing is a backfill in all ways: any process can die, several may run, failing items are tried again
    /// and listed, budgets end it. Items that are native already, from an earlier call or the application,
    /// are not embedded again.
    ///
    /// # Errors
    ///
    /// An invalid option for no items. Missing input and what is wrong with the file of queries, before
    /// anything is embedded. As [`backfill`](crate::backfill()) and [`Configuration::open_encoder`]. A
    /// conflict where another upgrade is under way, or this one is being filled or finished. I/O errors of
    /// the folder.
    pub fn pairs(
        &self,
        options: &PairsOptions,
        files: &PairsFiles<'_>,
        encoder: Option<&dyn Encoder>,
        observer: &dyn Observer,
    ) -> Result<PairsDrawn> {
        if options.items == 0 {
            return Err(Error::option("items", 0, "1 or more"));
        }
        let configuration = &self.configuration;
        configuration.expect_encoders(encoder.is_none(), files.asks())?;
        // The files of queries are read first: a mistake in them is found before anything is paid for.
        let query_log = self.read_asked(files)?;
        let space = self.new_space()?;
        let opened;
        let encoder = if let Some(encoder) = encoder {
            encoder
        } else {
            opened = configuration.open_encoder(&space)?;
            opened.as_ref()
        };
        let (old, order) = (&configuration.old, configuration.order);
        verbs::begin_sampling(self.store(), old, &space, order, observer)?;
        let limits =
            Limits { until: Until::All, follow: false, ..configuration.limits_of(&options.run, encoder)? };
        let mut drawing = Drawing {
            upgrade: self,
            space: &space,
            encoder,
            limits,
            options,
            observer,
            steps: Vec::new(),
            tally: Tally::default(),
            encoder_said: None,
            is_compared: false,
        };
        let (items, mut enough) = drawing.draw()?;
        if !matches!(enough, Enough::Ended(_)) {
            report::ask_first(self.store(), &space.name, items)?;
        }
        let pairs = DrawnPairs::read(self.store(), old, &space, PAIRS_MAX)?;
        if let Some(folder) = files.folder {
            pairs.write(folder)?;
        }
        let mut spent = encoder.spent();
        let (mut queries, mut queries_left_out, mut kept_clicks) = (None, Vec::new(), None);
        // A budget or a stop that ended the sample holds for the queries too.
        if let Some((query_log, clicks)) = query_log.filter(|_| !matches!(enough, Enough::Ended(_))) {
            match self.ask(&query_log, (encoder, drawing.is_compared), &mut spent, observer) {
                Ok((count, left_out)) => {
                    (queries, queries_left_out, kept_clicks) = (Some(count), left_out, clicks);
                }
                Err(error) => enough = Enough::Ended(drawing.ending_of(error)?),
            }
        }
        Ok(PairsDrawn {
            steps: drawing.steps,
            enough,
            pairs: pairs.len(),
            held_out: pairs.held_out(),
            failed: drawing.tally.failed,
            spent,
            encoder_said: drawing.encoder_said,
            findings: encoder.findings(),
            queries,
            queries_left_out,
            clicks: kept_clicks,
            folder: files.folder.map(Path::to_owned),
        })
    }

    /// Reads what people asked and what they clicked, as far as it says something of this gallery.
    fn read_asked(&self, files: &PairsFiles<'_>) -> Result<Option<(Asked, Option<ClicksKept>)>> {
        let Some(query_log) = Asked::read(files.queries, files.clicks)? else { return Ok(None) };
        let clicks = query_log.clicks(self.store())?;
        Ok(Some((query_log, clicks)))
    }

    /// Keeps queries by both models, and clicks, for choice and forecast. An encoder that no backfill has
    /// compared with the one that made the natives is compared first.
    fn ask(
        &self,
        query_log: &Asked,
        (encoder, is_compared): (&dyn Encoder, bool),
        spent: &mut Spent,
        observer: &dyn Observer,
    ) -> Result<(usize, Vec<String>)> {
        let (configuration, space) = (&self.configuration, self.new_space()?);
        let is_new = !asked::is_kept(self.store(), query_log, self.spaces())?;
        if is_new && !is_compared {
            let record = Recorded::expect(self.store())?.record;
            let shared_spent = expect_same_on_account(self.store(), &record, encoder)?;
            spending::share(self.store(), &record, encoder, shared_spent)?;
            *spent = encoder.spent();
        }
        let embedded = self.embed_queries(query_log, &space, spent, observer)?;
        if is_new && configuration.names_adapter() {
            // A report that other queries made, or items, says nothing of these.
            kept::remove(self.store(), Kind::Report, &self.planned()?.setup().fingerprint()?)?;
        }
        Ok(embedded)
    }

    /// Embeds queries by both models. What the new model's encoder uses counts towards the upgrade's budget,
    /// as for items, and is added to `spent`.
    fn embed_queries(
        &self,
        query_log: &Asked,
        new: &Space,
        spent: &mut Spent,
        observer: &dyn Observer,
    ) -> Result<(usize, Vec<String>)> {
        let (store, configuration) = (self.store(), &self.configuration);
        let record = Recorded::expect(store)?.record;
        let old = expect_space(store, &configuration.old.name)?.space;
        let opened = RefCell::new(None::<(Arc<dyn Encoder>, Spent)>);
        let learning = RefCell::new(Vec::<(String, Arc<dyn Encoder>, Option<String>)>::new());
        let account = || {
            if let Some((encoder, shared_spent)) = &mut *opened.borrow_mut() {
                *shared_spent = spending::share(store, &record, &**encoder, *shared_spent)?;
            }
            Ok(())
        };
        let encoders = |space: &Space| {
            let encoder = configuration.open_query_encoder(space)?;
            let kept_manners = manners::recall(store, &space.name, &*encoder)?;
            learning.borrow_mut().push((space.name.clone(), Arc::clone(&encoder), kept_manners));
            if space.name == new.name {
                opened.replace(Some((Arc::clone(&encoder), Spent::default())));
                account()?;
            }
            Ok(encoder)
        };
        let embedded = asked::embed_queries(store, query_log, (&old, new), &encoders, &account, observer);
        // The account is settled after an error too: what was embedded until then is paid for.
        account()?;
        for (space, encoder, mut kept_manners) in learning.take() {
            manners::keep(store, &space, &*encoder, &mut kept_manners)?;
        }
        if let Some((encoder, _)) = opened.take() {
            *spent = *spent + encoder.spent();
        }
        embedded
    }

    /// Fits an adapter on the gallery's own pairs, except those held out, and keeps it in the gallery: from
    /// now on it is the adapter of this configuration. The choice among methods takes as long as it does, or
    /// is made `within` a time.
    ///
    /// # Errors
    ///
    /// An invalid option where the configuration names an adapter; missing input where there are no pairs; as
    /// [`fit_files`](rehang_fit::fit_files).
    pub fn fit(&self, method: Method, within: Option<Within>, progress: &Progress) -> Result<FitAnswer> {
        if self.configuration.names_adapter() {
            let expected = "no file: an adapter that is fitted on the gallery's own pairs would not be used";
            return Err(Error::option("[adapter]", "a file", expected));
        }
        watched_upgrade(self.store(), "a fit", progress, |progress| {
            fit::fit(self.store(), self.spaces(), (method, within), progress)
        })
    }

    /// Fits a [bridge](rehang_core::Bridge) on the gallery's own pairs, and lets searches of the old space use it
    /// from now on: queries by both models find more there, before any vector of the gallery is written.
    /// Where none is proven to be above doing nothing there is none, and one that was in use is no longer.
    /// The gallery keeps the bridge.
    ///
    /// # Errors
    ///
    /// Missing input where there are no pairs; a wrong phase where searches are past the old space, as
    /// [`set_bridge`](verbs::set_bridge).
    pub fn bridge(&self, progress: &Progress) -> Result<Bridged> {
        let record = Recorded::expect(self.store())?.record;
        verbs::expect_may_bridge(self.store(), &record)?;
        let fitted = watched_upgrade(self.store(), "a fit", progress, |progress| {
            fit_bridge(self.store(), self.spaces(), progress)
        })?;
        let (old, new) = self.spaces();
        let in_use = verbs::set_bridge(self.store(), old, new, fitted.bridge.as_ref())?;
        Ok(Bridged { bridge: in_use, choice: fitted.choice })
    }

    /// Takes the bridge away: queries go to the old space as they are from the next search on.
    ///
    /// # Errors
    ///
    /// As [`set_bridge`](verbs::set_bridge).
    pub fn remove_bridge(&self) -> Result<Bridged> {
        let (old, new) = self.spaces();
        verbs::set_bridge(self.store(), old, new, None)?;
        Ok(Bridged { bridge: None, choice: None })
    }

    /// Chooses the order of the backfill by what held-out pairs find in each, as
    /// [`rehang_fit::choose_order`]. It goes by a metric (`None`: the one that a fit goes by). The upgrade
    /// follows the order from its next start on, where its configuration says that the order is chosen.
    /// `None` where there are too few pairs.
    ///
    /// # Errors
    ///
    /// An invalid option where the configuration names another order, or the metric cannot be measured on
    /// these pairs; missing input where there are no pairs; as [`Configuration::planned`].
    pub fn choose_order(&self, metric: Option<Metric>, progress: &Progress) -> Result<Option<OrderChoice>> {
        self.expect_order_is_chosen()?;
        let method = self.map()?.training.method.parse()?;
        watched_upgrade(self.store(), "a choice", progress, |progress| {
            fit::choose_order(self.store(), self.spaces(), (method, metric), progress)
        })
    }

    /// Fails where the configuration names an order, which no choice would change.
    pub(crate) fn expect_order_is_chosen(&self) -> Result<()> {
        if self.configuration.is_order_chosen {
            return Ok(());
        }
        let named = self.configuration.order.policy.name();
        Err(Error::option("[order] policy", named, "\"auto\", which follows the order that is chosen"))
    }

    /// Measures the adapter of the upgrade on the pairs that were held out, and keeps the report in the
    /// gallery, where [`Upgrade::plan`] and [`Upgrade::switch`] find it.
    ///
    /// # Errors
    ///
    /// A conflict where too few pairs are held out; as [`Configuration::planned`] and
    /// [`report`](rehang_evaluate::report()).
    pub fn report(&self, progress: &Progress) -> Result<UpgradeReport> {
        self.report_by(&PairsFiles::default(), progress)
    }

    /// Measures the adapter as [`Upgrade::report`] does, by the queries, or clicks, of `files`. Both models
    /// embed these first and the gallery keeps them, as [`Upgrade::pairs`] does. Queries that were embedded
    /// before cost nothing.
    ///
    /// # Errors
    ///
    /// As [`Upgrade::report`]; what is wrong with the files, before anything is embedded; what the encoders
    /// say.
    pub fn report_by(&self, files: &PairsFiles<'_>, progress: &Progress) -> Result<UpgradeReport> {
        if files.asks() {
            self.configuration.expect_encoders(true, true)?;
        }
        if let Some((query_log, _)) = self.read_asked(files)? {
            let encoder = self.open_encoder()?;
            self.ask(&query_log, (encoder.as_ref(), false), &mut Spent::default(), progress)?;
        }
        let adapter = self.map()?;
        let mut upgrade_report = watched_upgrade(self.store(), "a report", progress, |progress| {
            report::measure(self.store(), self.spaces(), adapter, progress)
        })?;
        upgrade_report.findings.extend(outgrown(self.store(), &self.planned()?.setup())?);
        Ok(upgrade_report)
    }

    /// Carries the floors of an application's searches over to the new model. For each it finds the one that
    /// lets as many answers through at the switch, and when all is native ([`rehang_evaluate::floors`]).
    /// Without `floors`, it takes the usual ones. Nothing is changed.
    ///
    /// # Errors
    ///
    /// An invalid option for a floor that is no number; as [`report`](Self::report).
    pub fn thresholds(&self, floors: &[f64], progress: &Progress) -> Result<Floors> {
        if let Some(floor) = floors.iter().find(|floor| !floor.is_finite()) {
            return Err(Error::option("floors", floor, "numbers such as 0.3"));
        }
        let adapter = self.map()?;
        report::thresholds(self.store(), self.spaces(), &adapter, floors, progress)
    }

    fn spaces(&self) -> (&Space, &Space) {
        (&self.configuration.old, &self.configuration.new)
    }

    /// Takes the lock of the upgrade. A refit that holds the lock makes way.
    fn lock(&self) -> Result<UpgradeLock> {
        let clock = SystemClock::start();
        let mut is_asked = false;
        loop {
            match self.configuration.gallery.lock() {
                Err(error) if error.is_conflict() && clock.now() < MAKES_WAY_WITHIN => {
                    // A refit that begins while this waits makes way too.
                    is_asked |= make_way(self.store(), &self.configuration.new.name)?;
                    if !is_asked {
                        return Err(error);
                    }
                    clock.wait(MAKES_WAY_WITHIN / 100);
                }
                locked => return locked,
            }
        }
    }

    /// Starts the upgrade as [`start`](verbs::start) does, in one process at a time; a refit that computes
    /// makes way.
    ///
    /// # Errors
    ///
    /// As [`start`](verbs::start); a conflict where another process is at work.
    pub fn start(&self, observer: &dyn Observer) -> Result<Started> {
        let _lock = self.lock()?;
        let planned = self.planned()?;
        let setup = planned.setup();
        let outgrown = outgrown(self.store(), &setup)?;
        let mut started = watched_upgrade(self.store(), "a start", observer, |progress| {
            verbs::start(self.store(), &setup, &CancellableObserver { observer, progress })
        })?;
        started.findings.extend(outgrown);
        Ok(started)
    }

    /// Starts a plain upgrade as [`start`](verbs::start) does without an adapter: nothing is mapped, a
    /// [run](Upgrade::run) embeds everything, and the switch follows it. A map that was fitted before is not
    /// used any more; a [fit](Upgrade::fit) and a [start](Upgrade::start) after it go over to a map.
    ///
    /// # Errors
    ///
    /// An invalid option where the configuration names an adapter; as [`start`](verbs::start); a conflict
    /// where another process is at work.
    pub fn start_plain(&self, observer: &dyn Observer) -> Result<Started> {
        if self.configuration.names_adapter() {
            return Err(Error::option("[adapter]", "a file", "no file: a plain upgrade maps nothing"));
        }
        let _lock = self.configuration.gallery.lock()?;
        let planned = self.planned_plain()?;
        let setup = planned.setup();
        // A start that is refused forgets no map. One that dies in between has begun nothing yet.
        setup.check(self.store())?;
        fit::forget(self.store(), &planned.new.name)?;
        verbs::start(self.store(), &setup, observer)
    }

    /// Switches searches to the new space as [`switch`](verbs::switch) does. Unless the switch is wanted
    /// `anyway`, it is refused for mixed searches that are forecast to serve worse than doing nothing, and
    /// for a space whose search index is not ready. Without `serving`, searches go [either
    /// way](Serving::Either) where the fit has proven that fused ones find more, else they are mixed. In a
    /// plain upgrade it is refused too where more than one item in a hundred has no vector. Also returns what
    /// a person should know of the forecast.
    ///
    /// # Errors
    ///
    /// As [`switch`](verbs::switch), [`expect_worthwhile`] and [`Configuration::forecast`].
    pub fn switch(&self, serving: Option<Serving>, anyway: bool) -> Result<(Switched, Vec<Finding>)> {
        let mut findings = Vec::new();
        let planned = self.planned_ongoing()?;
        let new = &planned.new.name;
        // The switch below refuses any other phase, for a better reason.
        let record = UpgradeRecord::read(self.store())?;
        let may_switch =
            record.as_ref().is_some_and(|record| matches!(record.phase, Phase::Filled | Phase::RolledBack));
        if may_switch && !anyway && find_space(self.store(), new)?.is_some() && !self.store.is_ready(new)? {
            let detail = "the first searches would compare every vector";
            return Err(Error::conflict(format!("the search index of {new:?} is not ready"), detail)
                .advise(Remedy::PrepareIndex));
        }
        if may_switch && !anyway && planned.adapter.is_none() {
            let counts = self.store.counts(new)?;
            if misses_too_many(&counts) {
                let detail = format!(
                    "no search would find {} of {} items: they have no vector there",
                    counts.lacking, counts.items
                );
                return Err(
                    Error::conflict(format!("switching to {new:?} now"), detail).advise(Remedy::EmbedFirst)
                );
            }
        }
        let serving = match (serving, &record) {
            (Some(serving), _) => serving,
            (None, Some(record)) if fit::is_fused_better(self.store(), &record.adapter)? => Serving::Either,
            (None, _) => Serving::Mixed,
        };
        if serving != Serving::Fused
            && !anyway
            && let Some(forecast) = self.configuration.forecast(self.store(), &planned)?
        {
            expect_worthwhile(self.store(), &forecast)?;
            let moved = forecast.moved_floors();
            findings = forecast.findings;
            findings.extend(moved);
        }
        let switched = verbs::switch(self.store(), &planned.setup(), serving, &Unobserved)?;
        Ok((switched, findings))
    }

    /// Runs a backfill as [`backfill`](crate::backfill()) does, with the encoder of the configuration unless
    /// one is given.
    ///
    /// Where the map was fitted on the gallery's own pairs, a share of the items is embedded first and kept
    /// for measuring. At 10 % and 40 % native it is asked beside the run whether a [refit](crate::refit())
    /// pays, unless [`RunOptions::no_refit`] says otherwise.
    ///
    /// After a [finish](Upgrade::finish) the run embeds what the finish has left and what came since, without
    /// an adapter and without a refit.
    ///
    /// # Errors
    ///
    /// As [`backfill`](crate::backfill()), [`expect_same`], [`Configuration::open_encoder`] and
    /// [`Configuration::limits_of`]. Of [`Until::Enough`] and [`Until::Worth`]: missing input without a
    /// forecast, or without a price or rate; an invalid option where it says no share.
    pub fn run(
        &self,
        options: &RunOptions,
        encoder: Option<&dyn Encoder>,
        observer: &dyn Observer,
    ) -> Result<Run> {
        let record = Recorded::expect(self.store())?.record;
        expect_between(self.store(), &record, &self.configuration.old, &self.configuration.new)?;
        // After the finish nothing is adapted, so a caller that has no adapter file any more can run too.
        let planned = if record.phase == Phase::Finished { None } else { Some(self.planned_ongoing()?) };
        if let Some(planned) = &planned {
            expect_same(self.store(), &planned.setup())?;
        }
        let opened;
        let encoder = if let Some(encoder) = encoder {
            encoder
        } else {
            opened = self.open_encoder()?;
            opened.as_ref()
        };
        let mut limits = self.configuration.limits_of(options, encoder)?;
        let asked_until = limits.until;
        if matches!(limits.until, Until::Enough | Until::Worth { .. }) {
            let planned = self.planned_ongoing()?;
            let forecast = self.configuration.forecast(self.store(), &planned)?;
            limits.until = share_of(limits.until, forecast.as_ref(), || self.cost_of_all(&record, &planned))?;
        }
        let setup = BackfillSetup {
            store: self.store(),
            encoder,
            scope: BackfillScope::Gallery(planned.as_ref().and_then(|planned| planned.adapter.as_deref())),
            limits,
            clock: &SystemClock::start(),
            worker: &worker_name(),
        };
        let asks = planned.is_some() && !options.no_refit && self.may_refit()?;
        if let Some(planned) = planned.as_ref().filter(|_| asks) {
            let counts = self.store.counts(&self.configuration.new.name)?;
            let by_budget = limits.budget.map_or(u64::MAX, |budget| counts.native.saturating_add(budget));
            let target = limits.until.target(counts.items).min(by_budget);
            let pairs = planned.adapter.as_ref().map_or(0, |adapter| adapter.training.pairs);
            match refit::keep(self.store(), self.spaces(), pairs, target) {
                // The upgrade was planned anew, and so was its order.
                Err(error) if error.is_superseded() => {}
                outcome => outcome?,
            }
        }
        let progress = Progress::default();
        let refitting = Refitting::new(self, observer, &progress);
        let (summary, refitted) = refitting
            .beside(asks, |counted| backfill_beside(&setup, observer, false, asks.then_some(counted)))?;
        let failed_in_all = match summary.ending {
            Ending::Released => 0,
            _ => self.store.counts(&self.configuration.new.name)?.failed,
        };
        let Refitted { refits, mut findings } = refitted;
        findings.extend(setup.encoder.findings());
        Ok(Run { summary, failed_in_all, refits, findings, until: limits.until, asked_until })
    }

    /// Whether the map in use was fitted here, so that another one may take its place.
    fn may_refit(&self) -> Result<bool> {
        let is_fitted = || fit::fitted(self.store(), &self.configuration.new.name);
        Ok(!self.configuration.names_adapter() && is_fitted()?.is_some())
    }

    /// Asks whether fitting the map again, on all that is native by now, pays. Where it does, takes the new
    /// map up and makes all adapted vectors anew, as [`refit()`](crate::refit()). A [run](Upgrade::run) asks
    /// by itself at 10 % and 40 % native. A refit that a death has interrupted is continued instead.
    ///
    /// # Errors
    ///
    /// An invalid option where the configuration names an adapter; a conflict where another process is at
    /// work, the upgrade is not filled, or too few of the items that are kept for measuring are native; as
    /// [`fit_files`](rehang_fit::fit_files).
    pub fn refit(&self, progress: &Progress) -> Result<Refit> {
        if self.configuration.names_adapter() {
            let expected =
                "no file: an adapter that is fitted on the gallery's own natives would not be used";
            return Err(Error::option("[adapter]", "a file", expected));
        }
        let _lock = self.configuration.gallery.lock()?;
        let answered = Refitting::new(self, progress, progress).answered(|_, _| Some(None))?;
        answered.ok_or_else(|| {
            let detail = "the upgrade has to be filled by a map that was fitted on its own pairs, and nearly all of the items that are kept for \
                          measuring native (30 or more; the gallery has to have 600 items): a run embeds them first";
            Error::conflict(format!("whether a refit of {} pays cannot be measured", self.store.name()), detail)
        })
    }

    /// Reads what is forecast of this upgrade; `None` without a report, and while there is no adapter yet.
    ///
    /// # Errors
    ///
    /// As [`Configuration::planned`] and [`Configuration::forecast`].
    pub fn forecast(&self) -> Result<Option<Forecast>> {
        self.configuration.forecast(self.store(), &self.planned_ongoing()?)
    }

    /// Reads how the upgrade stands, as [`status`](status::status) does.
    ///
    /// # Errors
    ///
    /// As [`status`](status::status).
    pub fn status(&self, failures: usize) -> Result<Status> {
        status::status(self.store(), failures)
    }

    /// Returns what the gallery's store says of itself beside everything else, such as what a release will do
    /// to an application.
    ///
    /// # Errors
    ///
    /// Those of the store.
    pub fn remarks(&self) -> Result<Vec<String>> {
        let mut remarks = self.store.remarks()?;
        remarks.extend(self.left_at_release()?);
        Ok(remarks)
    }

    /// Words what a release does with items that are not native, once the upgrade is nearly at its end.
    fn left_at_release(&self) -> Result<Option<String>> {
        let (store, new) = (self.store(), &self.configuration.new.name);
        let recorded = UpgradeRecord::read(store)?;
        let Some(record) = recorded.filter(|record| record.new.name == *new) else { return Ok(None) };
        let may_be_released = !matches!(self.configuration.gallery, Location::File(_));
        if !may_be_released || !matches!(record.phase, Phase::Filled | Phase::Finished) {
            return Ok(None);
        }
        let counts = store.counts(new)?;
        // In the middle of a run nothing is said of items that it has not come to yet, and has not failed
        // with.
        let waits = record.phase == Phase::Filled && sample::embeddable(store, new)? > counts.native;
        if counts.adapted + counts.without_source == 0 || waits {
            return Ok(None);
        }
        let leftovers = Leftovers::read(store, &record)?;
        let mut clauses = Vec::new();
        if leftovers.with_source > 0 {
            clauses.push(format!(
                "is refused while {} items with a source are not native ({} could not be embedded), unless their adapted vectors are taken along",
                leftovers.with_source, leftovers.failed
            ));
        }
        if leftovers.without_source > 0 {
            clauses.push(format!(
                "leaves {} items without a source without a vector of {new:?}, unless adapted vectors are taken along",
                leftovers.without_source
            ));
        }
        Ok(Some(format!("a release {}", clauses.join(", and "))))
    }

    /// Asks running backfills to pause, stop or run, as [`request`](verbs::request) does.
    ///
    /// # Errors
    ///
    /// As [`request`](verbs::request).
    pub fn request(&self, request: Request) -> Result<Requested> {
        let before = verbs::request(self.store(), &self.configuration.old, &self.configuration.new, request)?;
        Ok(Requested { request, before })
    }

    /// Puts items to the front of the queue by how often searches returned them, as [`put_first`]: a log has
    /// one id a line.
    ///
    /// # Errors
    ///
    /// As [`read_returned`] and [`put_first`].
    pub fn put_first(&self, log: &Path, observer: &dyn Observer) -> Result<PutFirst> {
        put_first(self.store(), self.spaces(), &read_returned(log)?, observer)
    }

    /// Allows backfills again. With `retry_failed`, items that are listed as failed are tried again, and with
    /// `re_embed` native ones are [put back](put_back).
    ///
    /// # Errors
    ///
    /// As [`request`](verbs::request) and [`put_back`].
    pub fn resume(&self, retry_failed: bool, re_embed: bool, observer: &dyn Observer) -> Result<Resumed> {
        let put_back =
            if re_embed { put_back(self.store(), &self.planned_ongoing()?.setup(), observer)? } else { 0 };
        let requested = self.request(Request::Run)?;
        let new = &self.configuration.new.name;
        let retried = if retry_failed { self.store.clear_failures(new)? } else { 0 };
        Ok(Resumed { requested, retried, put_back })
    }

    /// Rolls the upgrade back as [`rollback`](verbs::rollback) does. Taking away a bridge that is in use
    /// while pairs are drawn needs no adapter.
    ///
    /// # Errors
    ///
    /// As [`rollback`](verbs::rollback).
    pub fn rollback(&self) -> Result<RolledBack> {
        let record = UpgradeRecord::read(self.store())?;
        if record.is_some_and(|record| record.phase == Phase::Sampling && record.bridge.is_some()) {
            self.remove_bridge()?;
            return verbs::rolled_back_result(self.store(), self.configuration.old.name.clone());
        }
        verbs::rollback(self.store(), &self.planned_ongoing()?.setup(), &Unobserved)
    }

    /// Returns what a person should know before a [finish](Upgrade::finish), by how the upgrade stands at
    /// this moment; nothing once the old space is gone.
    ///
    /// # Errors
    ///
    /// Not found where there is no upgrade; those of the store.
    pub fn before_finish(&self) -> Result<Vec<Finding>> {
        let record = Recorded::expect(self.store())?.record;
        if record.dropped || find_space(self.store(), &record.new.name)?.is_none() {
            return Ok(Vec::new());
        }
        Ok(Leftovers::read(self.store(), &record)?.findings(&record))
    }

    /// Finishes the upgrade as [`finish`](verbs::finish) does, in one process at a time; a refit that
    /// computes makes way.
    ///
    /// # Errors
    ///
    /// As [`finish`](verbs::finish); a conflict where another process is at work.
    pub fn finish(&self, anyway: bool, observer: &dyn Observer) -> Result<FinishedUpgrade> {
        let _lock = self.lock()?;
        verbs::finish(self.store(), &self.planned_ongoing()?.setup(), anyway, observer)
    }
}

/// Drawing of pairs that is under way: samples of the gallery, each twice as large as the one before.
struct Drawing<'a> {
    upgrade: &'a Upgrade,
    /// New space, which the pairs are drawn into.
    space: &'a Space,
    encoder: &'a dyn Encoder,
    /// Limits of all samples together.
    limits: Limits,
    options: &'a PairsOptions,
    observer: &'a dyn Observer,
    steps: Vec<PairsStep>,
    tally: Tally,
    /// Words of the encoder where a budget of its own ended a sample.
    encoder_said: Option<String>,
    /// Whether the encoder was compared with the natives that were there before.
    is_compared: bool,
}

impl Drawing<'_> {
    /// Embeds samples until one more doubling is not worth it. Returns how many items the last one has, and
    /// why no larger one is drawn.
    fn draw(&mut self) -> Result<(usize, Enough)> {
        let mut items = FIRST_SAMPLE.min(self.options.items);
        loop {
            if let Some(enough) = self.sample(items)? {
                return Ok((items, enough));
            }
            items = self.larger(items);
        }
    }

    /// Number of items of the sample that follows one of `items`.
    fn larger(&self, items: usize) -> usize {
        (2 * items).min(self.options.items)
    }

    /// Embeds a sample and measures what its pairs are worth. Returns why no larger one is drawn; `None`
    /// where one is.
    fn sample(&mut self, items: usize) -> Result<Option<Enough>> {
        let (store, old, new) = (self.upgrade.store(), &self.upgrade.configuration.old, self.space);
        // Where all are native, not even the encoder is compared with the one that made them.
        let is_waited_for = sample::waiting(store, &new.name, items)? > 0;
        let (embedded, ending) = if is_waited_for { self.embed(items)? } else { (0, Ending::NothingLeft) };
        let pairs = DrawnPairs::read(store, old, new, items)?;
        let larger = self.larger(items);
        let embeddable = sample::embeddable(store, &new.name)?;
        let items_added = embeddable.min(larger as u64).saturating_sub(items as u64);
        // A call that died in the next sample had found this one wanting; measuring it again would take a
        // while.
        let went_on = embedded == 0
            && sample::waiting(store, &new.name, larger)? < items_added
            && Recorded::expect(store)?.record.phase == Phase::Sampling;
        let learned = if went_on { Ok(None) } else { pairs.learned(old, new, self.observer) };
        let is_interrupted = learned.as_ref().is_err_and(Error::is_cancelled);
        let learned = if is_interrupted { None } else { learned? };
        let next = learned.as_ref().map(|learned| learned.next);
        self.steps.push(PairsStep { items, pairs: pairs.len(), embedded, learned });
        if is_interrupted {
            return Ok(Some(Enough::Ended(Ending::Interrupted)));
        }
        let is_drawn = !is_waited_for || sample::waiting(store, &new.name, items)? == 0;
        Ok(if !is_drawn && ending != Ending::NothingLeft {
            Some(Enough::Ended(ending))
        } else if embeddable <= items as u64 {
            Some(Enough::WholeGallery)
        } else if items >= self.options.items {
            Some(Enough::Asked)
        } else if next.is_some_and(|next| next < self.options.worth) {
            Some(Enough::Learned)
        } else {
            None
        })
    }

    /// Embeds the items of a sample that wait. Returns how many got a vector, and why that ended.
    fn embed(&mut self, items: usize) -> Result<(u64, Ending)> {
        let budget = self.limits.budget.map(|budget| budget.saturating_sub(self.tally.native));
        let setup = BackfillSetup {
            store: self.upgrade.store(),
            encoder: self.encoder,
            scope: BackfillScope::Sample(items),
            limits: Limits { budget, ..self.limits },
            clock: &SystemClock::start(),
            worker: &worker_name(),
        };
        // An encoder that watches itself is compared once with the natives that were there before.
        let is_known = self.is_compared && self.encoder.watches_itself();
        let summary = backfill_compared(&setup, self.observer, is_known)?;
        self.is_compared = true;
        self.tally.native += summary.done.native;
        self.tally.failed += summary.done.failed;
        self.encoder_said = self.encoder_said.take().or(summary.encoder_said);
        Ok((summary.done.native, summary.ending))
    }

    /// Returns the ending that an error of the queries stands for. One that is neither a spent budget nor a
    /// stop stays an error.
    fn ending_of(&mut self, error: Error) -> Result<Ending> {
        if error.is_budget_spent() {
            self.encoder_said.get_or_insert(error.to_string());
            return Ok(Ending::EncoderBudgetSpent);
        }
        if error.is_cancelled() {
            return Ok(Ending::Interrupted);
        }
        Err(error)
    }
}

/// Makes the name that a run, or a service, works under: its machine and its process's number there, for
/// people, and a random part. Containers of one host name are each at work as process 1; a run that shared
/// its name with another would give back what the other has in hand.
pub fn worker_name() -> String {
    #[cfg(unix)]
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    #[cfg(not(unix))]
    let host = std::env::var("COMPUTERNAME").unwrap_or_default();
    let random = RandomState::new().hash_one(0_u8);
    format!("{host}:{}-{random:016x}", std::process::id())
}

/// Files of [`Upgrade::pairs`]: where pairs are written, and what people asked and clicked.
#[derive(Debug, Clone, Copy, Default)]
pub struct PairsFiles<'a> {
    /// Folder that the pairs are written into.
    pub folder: Option<&'a Path>,
    /// Queries from a log, one JSON object a line: `{"text": "…"}` or `{"image": "FILE"}`, either with an
    /// `"id"` where clicks name it.
    pub queries: Option<&'a Path>,
    /// Clicks: what people took from the answers, as [`rehang_files::read_clicks`] reads it. They name items
    /// by the gallery's ids, and queries by their ids or texts. Without `queries`, the texts that they name
    /// are the queries.
    pub clicks: Option<&'a Path>,
}

impl PairsFiles<'_> {
    /// Whether queries are given, by themselves or by what was clicked.
    pub(crate) fn asks(&self) -> bool {
        self.queries.is_some() || self.clicks.is_some()
    }
}

/// Outlook on an upgrade: what it would do and what is known of it before. See [`Upgrade::plan`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Outlook {
    /// Time and money that embedding everything takes, and the way that is shorter for it; `None` once the
    /// way is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ways: Option<Ways>,
    /// Plan of what a start would do.
    #[serde(flatten)]
    pub plan: Plan,
    /// Order in which items are re-embedded.
    pub order: OrderSettings,
    /// Time and money for the items that may be re-embedded.
    pub estimate: CostEstimate,
    /// Remark on what searches of the new space will cost; `None` where it is nothing unusual.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub searches: Option<String>,
    /// Forecast of quality, as a report on held-out pairs has it; `None` without a report.
    pub forecast: Option<Forecast>,
    /// Quality that the end is forecast to lose by the items that have no source, in the unit of the
    /// forecast's metric: their share of what the end is above the switch. `None` where there is no forecast,
    /// or every item has a source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lost_without_source: Option<f64>,
    /// Reason why the first item of a probe that got no vector has none.
    #[serde(skip)]
    pub probe_failure: Option<String>,
}

impl Outlook {
    /// Returns what a person should know before the upgrade.
    pub fn findings(&self) -> Vec<Finding> {
        let mut findings = self.plan.findings.clone();
        findings.extend(self.forecast.iter().flat_map(|forecast| forecast.findings.iter().cloned()));
        if let (Some(why), Some(failed), Some(items)) =
            (&self.probe_failure, self.estimate.failed, self.estimate.probed_items)
        {
            let message = format!("{failed} of {items} items got no vector: {why}");
            findings.push(Finding::warning(FindingCode::FailedProbe, message));
        }
        findings
    }
}

/// Result of [`Upgrade::bridge`].
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Bridged {
    /// Bridge that searches of the old space use now; `None` where they use none.
    pub bridge: Option<BridgeInUse>,
    /// How the bridge was chosen; `None` where there were too few pairs to prove anything, or none was asked
    /// for.
    pub choice: Option<BridgeChoice>,
}

/// Result of a run, with what it was asked for.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Run {
    /// Result of the backfill.
    #[serde(flatten)]
    pub summary: Summary,
    /// Items of the gallery that could not be embedded, in this run and before.
    pub failed_in_all: u64,
    /// Answers whether [refits](crate::refit()) paid, where that was asked meanwhile.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refits: Vec<Refit>,
    /// Findings that a person should know.
    #[serde(rename = "warnings", serialize_with = "as_sentences", skip_serializing_if = "Vec::is_empty")]
    pub findings: Vec<Finding>,
    /// End that the run went for.
    #[serde(skip)]
    pub until: Until,
    /// End that was asked for: for [`Until::Enough`] and [`Until::Worth`], `until` is the share that the
    /// forecast says.
    #[serde(skip)]
    pub asked_until: Until,
}

impl Run {
    /// Whether the run did what it was asked for: nothing ended it before, and it left no item that only a
    /// person can get a native vector for. A follower did so if it ended in order.
    pub fn is_complete(&self) -> bool {
        let ending = self.summary.ending;
        if matches!(ending, Ending::Dismissed | Ending::Released) {
            return true;
        }
        let items_left =
            self.summary.done.failed > 0 || (ending == Ending::NothingLeft && self.failed_in_all > 0);
        !ending.is_early() && !items_left && self.share_missed().is_none()
    }

    /// Returns the share that was asked for, where nothing is left to embed before that share is native.
    pub fn share_missed(&self) -> Option<f64> {
        match self.until {
            Until::Fraction(share) if self.summary.ending == Ending::NothingLeft => Some(share),
            _ => None,
        }
    }
}

/// Request to running backfills, now and before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Requested {
    /// Request that holds now.
    pub request: Request,
    /// Request that held before.
    pub before: Request,
}

/// Result of [`Upgrade::resume`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Resumed {
    /// Request to running backfills.
    #[serde(flatten)]
    pub requested: Requested,
    /// Failed items that are tried again.
    pub retried: u64,
    /// Native items that are adapted again.
    pub put_back: u64,
}

#[cfg(test)]
mod tests {
    use rehang_encode::Spent;

    use super::*;

    #[test]
    fn no_two_workers_share_a_name() {
        // The names are as of two containers: one host name, and each is at work as process 1. Only the
        // random part tells them apart.
        let names: std::collections::BTreeSet<String> = (0..100).map(|_| worker_name()).collect();
        assert_eq!(names.len(), 100);
        for name in names {
            let (machine, random) = name.rsplit_once('-').unwrap();
            let (host, process) = machine.rsplit_once(':').unwrap();
            assert!(!host.is_empty() && random.len() == 16, "{name}");
            assert_eq!(process, std::process::id().to_string());
        }
    }

    #[test]
    fn a_run_is_complete_only_where_it_did_all_that_was_asked() {
        let run = |ending, failed_now, failed_in_all, until| {
            let done = Tally { failed: failed_now, ..Tally::default() };
            let summary = Summary {
                ending,
                encoder_said: None,
                done,
                items: 10,
                native: 5,
                copied: 0,
                caught_up: 0,
                indexed: false,
                spent: Spent::default(),
                elapsed_ms: 0,
                encoder_busy_ms: 0,
                sigma: None,
            };
            let (refits, findings) = (Vec::new(), Vec::new());
            Run { summary, failed_in_all, refits, findings, until, asked_until: until }
        };
        let is_complete = |ending, failed_now, failed_in_all| {
            run(ending, failed_now, failed_in_all, Until::All).is_complete()
        };
        for ending in [
            Ending::NothingLeft,
            Ending::ReachedFraction,
            Ending::SpentBudget,
            Ending::Paused,
            Ending::Stopped,
        ] {
            assert!(is_complete(ending, 0, 0), "{ending:?}");
            assert!(!is_complete(ending, 1, 1), "{ending:?}");
        }
        // Items that failed before are in the way of a run until all is native, not of one until a share is.
        assert!(!is_complete(Ending::NothingLeft, 0, 2));
        assert!(is_complete(Ending::SpentBudget, 0, 2));
        for ending in [Ending::RolledBack, Ending::EncoderBudgetSpent, Ending::Interrupted] {
            assert!(!is_complete(ending, 0, 0), "{ending:?}");
        }
        // A share for which nothing is left was asked for in vain, and that is said. Without a share, a run
        // is asked for all that is left.
        let short = run(Ending::NothingLeft, 0, 0, Until::Fraction(0.8));
        assert!(!short.is_complete() && short.share_missed() == Some(0.8));
        assert_eq!(run(Ending::NothingLeft, 0, 0, Until::All).share_missed(), None);
        assert!(run(Ending::ReachedFraction, 0, 0, Until::Fraction(0.5)).is_complete());
    }
}
