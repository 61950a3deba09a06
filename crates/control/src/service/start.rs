//! Starting the service: open the journal, replay it, reconcile what depends on it, and run.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::{Builder, JoinHandle};

use gangline_base::{JobId, NodeName, Principal, SweepId, Timestamp};
use gangline_execution::launcher::{IDENTITY_FILE, Launcher};
use gangline_orchestration::{Engine, Event, Limits, Location, NodeSpec, NodeStatus, Refusal, ShareState};
use gangline_specs::config::{self, ConfigError};
use tracing::{info, warn};

use super::actor::Actor;
use super::allocations::Allocations;
use super::archives::Archives;
use super::audit::Audit;
use super::batch::{Batch, Rows};
use super::capacities::Capacities;
use super::contacts::Contacts;
use super::dataset_caches::ExpectedDatasets;
use super::handle::{Handle, Request};
use super::heal::{Outlets, UnderWay};
use super::housekeeping;
use super::looks;
use super::retention::{self, Sweeper};
use super::runtime::Runtimes;
use super::storage::Meter;
use super::survey::{self, HasJobs, Surveyed};
use super::troubles::Troubles;
use super::{Options, REQUESTS_MAX, launch};
use crate::views::Views;
use gangline_store::codec::{self, decode_entry, decode_snapshot};
use gangline_store::db::{self, Journal, Recovered, Sequence};
use gangline_store::model::{JobRecord, Repair, SweepRecord};
use gangline_store::ports::Queries as _;

/// Why the control plane didn't start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The journal can't be opened or read.
    #[error(transparent)]
    Journal(#[from] db::Error),
    /// The body of a journal entry can't be decoded.
    #[error("journal entry {sequence} can't be read")]
    Body {
        /// The entry's sequence number; 0 stands for the snapshot.
        sequence: u64,
        /// The decoding error.
        source: codec::Error,
    },
    /// A journal entry doesn't follow from those before it: a bug, or a journal that was put together by
    /// hand.
    #[error("journal entry {sequence} doesn't follow from those before it")]
    Replay {
        /// The entry's sequence number.
        sequence: u64,
        /// The engine's refusal.
        source: Refusal,
    },
    /// There are more nodes than the limit.
    #[error(transparent)]
    Nodes(#[from] ConfigError),
    /// The operating system provides no random number for the epoch.
    #[error("no random number for the epoch: {0}")]
    NoEpoch(getrandom::Error),
    /// A thread of the service can't be started.
    #[error("a thread can't be started")]
    Thread(#[source] std::io::Error),
}

/// A running service. Dropping it leaves the thread running; [`Service::stop`] ends it.
#[derive(Debug)]
pub struct Service {
    handle: Handle,
    views: Views,
    thread: JoinHandle<()>,
    /// Why the thread ended on its own, if it did.
    failure: Arc<OnceLock<String>>,
    launching: JoinHandle<()>,
    housekeeping: JoinHandle<()>,
    /// Stops the surveying thread when dropped.
    surveying: Option<Sender<()>>,
    /// Stops the retention thread when dropped.
    sweeping: Sender<()>,
    /// Stops the thread that measures storage when dropped.
    metering: Sender<()>,
    /// Stops the auditing thread when dropped.
    auditing: Sender<()>,
}

impl Service {
    /// Opens the data folder and starts the service's threads.
    ///
    /// # Errors
    /// [`StartError`]; nothing has changed then, except that a torn last journal entry may have been put
    /// aside.
    pub fn start(options: Options) -> Result<Service, StartError> {
        let (requests, inbox) = sync_channel(REQUESTS_MAX);
        let (launches, gangs) = sync_channel(launch::LAUNCHES_MAX);
        let (looks, to_look) = sync_channel(looks::LOOKS_MAX);
        let (chores, to_do) = sync_channel(housekeeping::CHORES_MAX);
        let launcher = options.launcher.clone();
        let surveys = options.survey.is_some();
        let now = (options.clock)();
        let (clock, folder) = (options.clock, options.folder.clone());
        let actor = Actor::open(options, (launches, looks, chores), now)?;
        let (reader, known) = (actor.journal.reader(), actor.known.clone());
        let (auditing, stop) = channel();
        let (audit, audited) = (actor.audit.clone(), reader.clone());
        let views = Views::new(reader, folder);
        let look_through = move || audit.run(&audited, clock, &stop);
        Builder::new().name("audit".to_owned()).spawn(look_through).map_err(StartError::Thread)?;
        let surveyed = (launcher.clone(), actor.has_jobs.clone(), requests.clone());
        let survey = |(launcher, has_jobs, service): (Arc<dyn Launcher>, HasJobs, SyncSender<Request>)| {
            let (stopper, stop) = channel();
            let thread = Builder::new().name("survey".to_owned());
            thread.spawn(move || survey::run(&launcher, &has_jobs, &stop, &service)).map(|_| stopper)
        };
        let surveying = surveys.then(|| survey(surveyed)).transpose().map_err(StartError::Thread)?;
        looks::start(&launcher, to_look, &requests).map_err(StartError::Thread)?;
        let sweeping = sweep(&actor, &requests).map_err(StartError::Thread)?;
        let metering = meter(&actor, &requests).map_err(StartError::Thread)?;
        let service = requests.clone();
        let data = actor.options.folder.clone();
        let launch = move || launch::run(&data, &launcher, &gangs, &service);
        let launching = Builder::new().name("launch".to_owned()).spawn(launch).map_err(StartError::Thread)?;
        let service = requests.clone();
        let keep = move || housekeeping::run(&to_do, &service);
        let housekeeping = Builder::new().name("housekeep".to_owned()).spawn(keep).map_err(StartError::Thread)?;
        let failure = Arc::new(OnceLock::new());
        let ended = Arc::clone(&failure);
        let run = move || {
            if let Err(cause) = actor.run(&inbox) {
                // Only this thread sets the value, so setting it can't fail.
                let _ = ended.set(cause);
            }
        };
        let thread = Builder::new().name("control".to_owned()).spawn(run).map_err(StartError::Thread)?;
        let handle = Handle { requests, known, key: None, by: Principal::Service };
        Ok(Service { handle, views, thread, failure, launching, housekeeping, surveying, sweeping, metering, auditing })
    }

    /// Reports whether the service's thread is alive. If it isn't, no request is answered any more.
    #[must_use]
    pub fn is_running(&self) -> bool {
        !self.thread.is_finished()
    }

    /// Returns why the service's thread ended on its own: the journal can't be written, or its durable
    /// entries can't be resumed.
    #[must_use]
    pub fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// Returns a handle for requests.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Returns the API's views of the read models.
    #[must_use]
    pub fn views(&self) -> Views {
        self.views.clone()
    }

    /// Commits pending changes, writes a snapshot and ends. Supervisors and their ranks go on.
    pub fn stop(self) {
        // Fails only if the thread has ended already.
        let _ = self.handle.requests.send(Request::Stop);
        // These threads have nothing to finish and may hang on an unresponsive system: they are told to stop,
        // not joined.
        drop((self.surveying, self.sweeping, self.metering, self.auditing));
        if self.thread.join().is_err() {
            warn!("the control plane's thread had panicked");
        }
        if self.launching.join().is_err() {
            warn!("the launching thread had panicked");
        }
        if self.housekeeping.join().is_err() {
            warn!("the journal's housekeeper had panicked");
        }
    }
}

/// Starts the retention thread, which runs until the returned sender is dropped.
fn sweep(actor: &Actor, requests: &SyncSender<Request>) -> std::io::Result<Sender<()>> {
    let Options { folder, retention, launcher, clock, .. } = &actor.options;
    let sweeper = Sweeper {
        folder: folder.clone(),
        policy: *retention,
        launcher: Arc::clone(launcher),
        reader: actor.journal.reader(),
        checkpoints_from: JobId(0),
        told: None,
        told_end: None,
    };
    let (stopper, stop) = channel();
    let (times, requests) = ((*clock, actor.last_seen), requests.clone());
    let run = move || retention::run(sweeper, times, requests, stop);
    Builder::new().name("retention".to_owned()).spawn(run).map(|_| stopper)
}

/// Starts the thread that measures storage, which runs until the returned sender is dropped.
fn meter(actor: &Actor, requests: &SyncSender<Request>) -> std::io::Result<Sender<()>> {
    let Options { folder, journal_folder, billing, .. } = &actor.options;
    let meter = Meter::new((folder.clone(), journal_folder.clone()), billing.storage.clone(), actor.journal.reader());
    let (stopper, stop) = channel();
    let requests = requests.clone();
    Builder::new().name("storage".to_owned()).spawn(move || meter.run(&requests, &stop)).map(|_| stopper)
}

/// Returns the rows to remove from read models that are ahead of a damaged journal.
fn repairs(engine: &Engine, last: Sequence) -> Vec<Repair> {
    let live = engine.jobs().map(|job| {
        let is_allocated = u32::from(job.attempt().is_some());
        Repair::Rewind { job: job.id, closed: job.attempts - is_allocated }
    });
    live.chain([Repair::Forget { from: engine.next_job_id() }, Repair::ForgetAnswers { after: last }]).collect()
}

pub(super) fn replay(recovered: &Recovered, limits: Limits) -> Result<Engine, StartError> {
    let mut engine = match &recovered.snapshot {
        None => Engine::new(limits),
        Some(snapshot) => {
            let sequence = snapshot.sequence.0;
            let state = decode_snapshot(&snapshot.body).map_err(|source| StartError::Body { sequence: 0, source })?;
            Engine::restore(limits, state).map_err(|source| StartError::Replay { sequence, source })?
        }
    };
    for record in &recovered.records {
        let sequence = record.sequence.0;
        let entry = decode_entry(&record.body).map_err(|source| StartError::Body { sequence, source })?;
        let Some(entry) = entry.engine() else { continue };
        engine.replay(record.at, &entry).map_err(|source| StartError::Replay { sequence, source })?;
    }
    info!(entries = recovered.records.len(), jobs = engine.jobs().len(), "replayed the journal");
    Ok(engine)
}

impl Actor {
    /// Opens the data folder and reconciles everything with its journal. Gangs to start and operations that
    /// may block go to the `outlets`.
    pub(super) fn open(options: Options, outlets: Outlets, now: Timestamp) -> Result<Actor, StartError> {
        config::check(&options.nodes)?;
        let journal_folder = db::place_journal(&options.folder, &options.journal_folder)?;
        let (journal, recovered) = Journal::open(&journal_folder, options.journal)?;
        Actor::resume(journal, recovered, options, UnderWay::nothing(outlets), now)
    }

    /// Resumes from the journal's recovered state and the operations that are still under way.
    pub(super) fn resume(
        journal: Journal,
        recovered: Recovered,
        options: Options,
        under_way: UnderWay,
        now: Timestamp,
    ) -> Result<Actor, StartError> {
        for warning in &recovered.warnings {
            warn!("{warning}");
        }
        let engine = replay(&recovered, options.limits)?;
        let last_seen = engine.now();
        // The system's clock may have been set back since the last entry.
        let now = now.max(last_seen);
        // Each live job of the journal has a record, unless a row is damaged or the job's end was in an entry
        // that was put aside: then its record is rebuilt.
        let stored = journal.reader().live_jobs(&engine.jobs().map(|job| job.id).collect())?;
        under_way.known.learn(&journal.reader());
        let mut actor = Actor {
            engine,
            reader: journal.reader(),
            journal,
            records: BTreeMap::new(),
            rows: Rows::default(),
            contacts: Contacts::default(),
            runtimes: Runtimes::default(),
            launches: under_way.launches,
            launching: under_way.launching,
            relaunches: under_way.relaunches,
            surveyed: Surveyed::default(),
            allocations: Allocations::default(),
            has_jobs: HasJobs::default(),
            found: BTreeMap::new(),
            looks: under_way.looks,
            looking: under_way.looking,
            housekeeping: under_way.housekeeping,
            known: under_way.known,
            troubles: Troubles::default(),
            audit: Audit::default(),
            capacities: Capacities::default(),
            archives: Archives::default(),
            expected: ExpectedDatasets::default(),
            rows_since: None,
            entries_since_snapshot: u64::try_from(recovered.records.len()).unwrap_or(u64::MAX),
            last_seen,
            watched_at: now,
            anchor_synced_at: now,
            demand_told_at: Timestamp::EPOCH,
            options,
        };
        if actor.options.survey.is_some() {
            actor.options.nodes = actor.nodes_of_last_life();
        }
        if recovered.may_read_models_be_ahead() {
            actor.rows.repairs = repairs(&actor.engine, actor.journal.last());
        }
        let with_folders = actor.jobs_with_folders();
        let given_out = actor.given_out(recovered.given_out, &with_folders)?;
        // The audit runs before the first write, so that damage is reported before anything is written over
        // it.
        actor.audit.begin(&actor.reader, given_out);
        actor.reconcile(stored, (given_out, with_folders), now)?;
        Ok(actor)
    }

    /// Reconciles everything with the replayed engine: records, nodes, supervisors, and decisions that a
    /// crash cut off.
    fn reconcile(
        &mut self,
        stored: Vec<JobRecord>,
        (given_out, with_folders): (JobId, BTreeSet<JobId>),
        now: Timestamp,
    ) -> Result<(), StartError> {
        let mut batch = Batch::default();
        batch.must_commit = true;
        self.reconcile_records(stored, now);
        if let Some(original) = self.journal.original().map(Path::to_owned) {
            self.leave_jobs_to(&original, &mut batch);
        } else {
            self.put_aside_lost_attempts(now, with_folders);
        }
        self.begin_epoch(now, given_out, &mut batch)?;
        if self.options.survey.is_none() {
            self.reconcile_nodes(now, &mut batch);
        }
        self.reconcile_sharing(now, &mut batch);
        self.reattach(now, &mut batch);
        if let Err(refusal) = self.apply(now, Event::TimePassed, &mut batch) {
            warn!(%refusal, "time could not pass at the start");
        }
        self.recall_capacities(now)?;
        self.recall_archives(now, &mut batch)?;
        self.note_capacities(now, &mut batch);
        self.finish(now, batch);
        self.journal.own_folder()?;
        Ok(())
    }

    /// Records and journal are committed together, so they differ only where damaged entries were put aside.
    fn reconcile_records(&mut self, stored: Vec<JobRecord>, now: Timestamp) {
        self.records.extend(stored.into_iter().map(|record| (record.id, record)));
        let missing: Vec<JobId> =
            self.engine.jobs().map(|job| job.id).filter(|id| !self.records.contains_key(id)).collect();
        let mut sweeps: BTreeMap<SweepId, Arc<SweepRecord>> = BTreeMap::new();
        for id in missing {
            let Some(job) = self.engine.job(id) else { continue };
            warn!(job = %id, "a job's record is made anew from the journal");
            let record = match job.sweep.and_then(|id| Some((id, self.engine.sweep(id)?.spec.as_ref()?))) {
                None => JobRecord::new(id, &job.spec, job.submitted_at),
                Some((sweep, spec)) => {
                    let shared = sweeps.entry(sweep).or_insert_with(|| Arc::new(SweepRecord::new(sweep, spec)));
                    JobRecord::point(shared, spec, id, job.submitted_at)
                }
            };
            self.records.insert(id, record);
            self.rows.jobs.insert(id);
        }
        self.rows.sweeps.extend(sweeps.into_values());
        for job in self.engine.jobs() {
            if let Some(record) = self.records.get_mut(&job.id)
                && (record.lacks_prices() | record.align(now, job, &self.engine))
            {
                record.price_attempt(|node| self.options.price_of(node));
                if self.options.launcher.allocates() {
                    record.await_allocation();
                }
                self.rows.jobs.insert(job.id);
            }
        }
    }

    /// Replaces the engine's queues with the configured ones.
    fn reconcile_sharing(&mut self, now: Timestamp, batch: &mut Batch) {
        if *self.engine.configuration() == self.options.sharing {
            return;
        }
        let event = Event::Configured(Arc::new(self.options.sharing.clone()));
        if let Err(refusal) = self.apply(now, event, batch) {
            warn!(%refusal, "the queues and prices stay as they were");
        }
        self.meter_budgets(now);
    }

    /// Counts what jobs with a budget have spent, before other prices apply to them.
    pub(super) fn meter_budgets(&mut self, now: Timestamp) {
        for record in self.records.values_mut().filter(|record| record.budget.is_some()) {
            record.meter(now, &self.engine);
            self.rows.jobs.insert(record.id);
        }
    }

    /// Updates the engine's nodes from the configuration; a node that is no longer configured takes no new
    /// jobs.
    fn reconcile_nodes(&mut self, now: Timestamp, batch: &mut Batch) {
        let configured: Vec<NodeSpec> = self
            .options
            .nodes
            .iter()
            .map(|node| NodeSpec {
                name: node.name.clone(),
                capacity: node.capacity.clone(),
                location: node.location.clone(),
                layout: node.layout.clone(),
            })
            .collect();
        let known: BTreeMap<NodeName, (NodeSpec, NodeStatus)> = self
            .engine
            .cluster()
            .nodes()
            .map(|node| (node.spec.name.clone(), (node.spec.clone(), node.status)))
            .collect();
        let mut events = Vec::new();
        // A rack may have moved with all its nodes: all of them leave the old place before the first joins
        // the new one.
        for spec in &configured {
            if let Some((old, _)) = known.get(&spec.name).filter(|(old, _)| old.location != spec.location)
                && old.location != Location::default()
            {
                events.push(Event::NodeJoined(NodeSpec { location: Location::default(), ..old.clone() }));
            }
        }
        let was_removed = |name: &NodeName| known.get(name).is_some_and(|(old, _)| old.capacity.accelerators == 0);
        for spec in &configured {
            let is_same = known.get(&spec.name).is_some_and(|(old, status)| old == spec && *status != NodeStatus::Lost);
            if !is_same {
                events.push(Event::NodeJoined(spec.clone()));
            }
            // Its drain was that of its removal.
            if was_removed(&spec.name)
                && let Some(node) = self.engine.node_id(&spec.name)
            {
                events.push(Event::DrainCancelled { node });
            }
        }
        for (name, (_, status)) in &known {
            let is_configured = configured.iter().any(|spec| spec.name == *name);
            if is_configured && *status == NodeStatus::Draining {
                info!(node = %name, "a node is still draining; gangline drain --undo takes it back into use");
            }
            if !is_configured
                && matches!(status, NodeStatus::Ready | NodeStatus::Suspect)
                && let Some(node) = self.engine.node_id(name)
            {
                warn!(node = %name, "a node isn't in the configuration any more and is drained");
                events.push(Event::DrainRequested { node, within: None });
            }
        }
        for event in events {
            if let Err(refusal) = self.apply(now, event, batch) {
                warn!(%refusal, "a node could not join");
            }
        }
        self.remove_nodes(now, batch);
    }

    /// Renews the lease of every live attempt's supervisor, and starts supervisors that a crash kept from
    /// being started.
    fn reattach(&mut self, now: Timestamp, batch: &mut Batch) {
        let mut gangs = Vec::new();
        for job in self.engine.jobs() {
            let Some(attempt) = job.attempt() else { continue };
            let mut missing = Vec::new();
            let all = self.supervisor_specs(job.id, attempt.number, &attempt.shares);
            for (spec, state) in all.into_iter().zip(&attempt.states) {
                if let Ok(node) = NodeName::new(&spec.node) {
                    self.contacts.hear(job.id, node, now, &self.options.timing);
                }
                let was_started = spec.folder.join(IDENTITY_FILE).exists() || self.is_launching(&spec);
                if *state == ShareState::Launching && !was_started {
                    missing.push(spec);
                }
            }
            if !missing.is_empty() {
                gangs.push(missing);
            }
        }
        batch.launches.extend(gangs);
    }
}
