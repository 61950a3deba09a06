//! Starting the service: open the journal, replay it, reconcile what depends on it, and run.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::mpsc::{Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::{Builder, JoinHandle};

use gangline_base::{JobId, NodeName, SweepId, Timestamp};
use gangline_execution::launcher::{IDENTITY_FILE, Launcher};
use gangline_orchestration::{Engine, Event, Limits, Location, NodeSpec, NodeStatus, Refusal, ShareState};
use tracing::{info, warn};

use super::actor::Actor;
use super::audit::Audit;
use super::batch::{Batch, Rows};
use super::contacts::Contacts;
use super::handle::{Handle, Request};
use super::heal::{Outlets, UnderWay};
use super::keeper;
use super::looks;
use super::retention::{self, Sweeper};
use super::survey::{self, Surveyed};
use super::troubles::Troubles;
use super::{Options, REQUESTS_MAX, launch};
use crate::codec::{self, decode_entry, decode_snapshot};
use crate::config::{self, ConfigError};
use crate::db::{self, Journal, Reader, Recovered, Sequence};
use crate::model::{JobRecord, Repair, SweepRecord, live_jobs, read_job, unless_damaged};

/// Why the control plane didn't start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The journal can't be used.
    #[error(transparent)]
    Journal(#[from] db::Error),
    /// A journal body can't be read.
    #[error("journal entry {sequence} can't be read")]
    Body {
        /// Which; 0 stands for the snapshot.
        sequence: u64,
        /// Why.
        source: codec::Error,
    },
    /// A journal entry doesn't follow from those before it: a bug, or a journal put together by hand.
    #[error("journal entry {sequence} doesn't follow from those before it")]
    Replay {
        /// Which.
        sequence: u64,
        /// Why.
        source: Refusal,
    },
    /// The nodes are more than can be worked with.
    #[error(transparent)]
    Nodes(#[from] ConfigError),
    /// The operating system gives no random number for the epoch.
    #[error("no random number for the epoch: {0}")]
    NoEpoch(getrandom::Error),
    /// The service's threads can't be started.
    #[error("a thread can't be started")]
    Thread(#[source] std::io::Error),
}

/// A running service. Dropping it leaves the thread running; [`Service::stop`] ends it.
#[derive(Debug)]
pub struct Service {
    handle: Handle,
    reader: Reader,
    thread: JoinHandle<()>,
    /// Why the thread has ended, unless it was asked to.
    failure: Arc<OnceLock<String>>,
    launching: JoinHandle<()>,
    keeping: JoinHandle<()>,
    /// Dropped, it stops the surveying thread.
    surveying: Option<Sender<()>>,
    /// Dropped, it stops the thread that removes what is old.
    sweeping: Sender<()>,
    /// Dropped, it stops the auditing thread.
    auditing: Sender<()>,
}

impl Service {
    /// Opens the data folder and starts the service's threads.
    ///
    /// # Errors
    /// [`StartError`]; nothing has been changed then, but a torn last journal entry may have been put aside.
    pub fn start(options: Options) -> Result<Service, StartError> {
        let (requests, inbox) = sync_channel(REQUESTS_MAX);
        let (launches, gangs) = sync_channel(launch::LAUNCHES_MAX);
        let (looks, to_look) = sync_channel(looks::LOOKS_MAX);
        let (chores, to_do) = sync_channel(keeper::CHORES_MAX);
        let launcher = options.launcher.clone();
        let surveys = options.survey.is_some();
        let now = (options.clock)();
        let clock = options.clock;
        let actor = Actor::open(options, (launches, looks, chores), now)?;
        let (reader, known) = (actor.journal.reader(), actor.known.clone());
        let (auditing, stop) = channel();
        let (audit, audited) = (actor.audit.clone(), reader.clone());
        let look_through = move || audit.run(&audited, clock, &stop);
        Builder::new().name("audit".to_owned()).spawn(look_through).map_err(StartError::Thread)?;
        let surveyed = (launcher.clone(), requests.clone());
        let survey = |(launcher, service): (Arc<dyn Launcher>, SyncSender<Request>)| {
            let (stopper, stop) = channel();
            let thread = Builder::new().name("survey".to_owned());
            thread.spawn(move || survey::run(&launcher, &stop, &service)).map(|_| stopper)
        };
        let surveying = surveys.then(|| survey(surveyed)).transpose().map_err(StartError::Thread)?;
        looks::start(&launcher, to_look, &requests).map_err(StartError::Thread)?;
        let sweeping = sweep(&actor, &requests).map_err(StartError::Thread)?;
        let service = requests.clone();
        let launch = move || launch::run(&launcher, &gangs, &service);
        let launching = Builder::new().name("launch".to_owned()).spawn(launch).map_err(StartError::Thread)?;
        let service = requests.clone();
        let keep = move || keeper::run(&to_do, &service);
        let keeping = Builder::new().name("keep".to_owned()).spawn(keep).map_err(StartError::Thread)?;
        let failure = Arc::new(OnceLock::new());
        let ended = Arc::clone(&failure);
        let run = move || {
            if let Err(cause) = actor.run(&inbox) {
                // Nobody else sets it.
                let _ = ended.set(cause);
            }
        };
        let thread = Builder::new().name("control".to_owned()).spawn(run).map_err(StartError::Thread)?;
        let handle = Handle { requests, known, key: None };
        Ok(Service { handle, reader, thread, failure, launching, keeping, surveying, sweeping, auditing })
    }

    /// Whether the service's thread lives; once it doesn't, nothing is answered any more.
    #[must_use]
    pub fn is_running(&self) -> bool {
        !self.thread.is_finished()
    }

    /// Why the service's thread has ended on its own: the journal can't be written, or what is durable can't be gone on with.
    #[must_use]
    pub fn failure(&self) -> Option<&str> {
        self.failure.get().map(String::as_str)
    }

    /// The handle for requests.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// Reads the read models.
    #[must_use]
    pub fn reader(&self) -> Reader {
        self.reader.clone()
    }

    /// Commits what is under way, writes a snapshot and ends. Supervisors and their ranks go on.
    pub fn stop(self) {
        // Fails only if the thread has ended already.
        let _ = self.handle.requests.send(Request::Stop);
        // They may be asking what doesn't answer, and have nothing to finish: they are told to stop and not waited for.
        drop((self.surveying, self.sweeping, self.auditing));
        if self.thread.join().is_err() {
            warn!("the control plane's thread had panicked");
        }
        if self.launching.join().is_err() {
            warn!("the launching thread had panicked");
        }
        if self.keeping.join().is_err() {
            warn!("the journal's keeper had panicked");
        }
    }
}

/// The thread that removes what is old, until what is returned is dropped.
fn sweep(actor: &Actor, requests: &SyncSender<Request>) -> std::io::Result<Sender<()>> {
    let Options { folder, retention, launcher, clock, .. } = &actor.options;
    let sweeper = Sweeper {
        folder: folder.clone(),
        policy: *retention,
        launcher: Arc::clone(launcher),
        reader: actor.journal.reader(),
        curves_from: JobId(0),
        checkpoints_from: JobId(0),
        told: None,
        told_end: None,
    };
    let (stopper, stop) = channel();
    let (times, requests) = ((*clock, actor.last_seen), requests.clone());
    let run = move || retention::run(sweeper, times, requests, stop);
    Builder::new().name("retention".to_owned()).spawn(run).map(|_| stopper)
}

/// The records of all live jobs. One that the journal knows as live has one, but for damage.
fn read_records(reader: &Reader, engine: &Engine) -> Result<Vec<JobRecord>, db::Error> {
    reader.read(|transaction| {
        let mut records = live_jobs(transaction)?;
        records.retain(|record| engine.job(record.id).is_some());
        let known: BTreeSet<JobId> = records.iter().map(|record| record.id).collect();
        for job in engine.jobs().filter(|job| !known.contains(&job.id)) {
            // It had ended in an entry that was put aside, or its row is damaged: then it is made anew.
            let found = unless_damaged(read_job(transaction, job.id))?.flatten();
            records.extend(found.map(|(record, _)| record));
        }
        Ok(records)
    })
}

/// What to take out of read models that are ahead of a damaged journal.
fn repairs(engine: &Engine, last: Sequence) -> Vec<Repair> {
    let live = engine.jobs().map(|job| {
        let is_allocated = u32::from(job.attempt().is_some());
        Repair::Rewind { job: job.id, placed: job.attempts, closed: job.attempts - is_allocated }
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
    /// Opens the data folder and brings everything in line with its journal. Gangs that are to be started, and what may block,
    /// go to the `outlets`.
    pub(super) fn open(options: Options, outlets: Outlets, now: Timestamp) -> Result<Actor, StartError> {
        config::check(&options.nodes)?;
        let journal_folder = db::place_journal(&options.folder, &options.journal_folder)?;
        let (journal, recovered) = Journal::open(&journal_folder, options.journal)?;
        Actor::resume(journal, recovered, options, UnderWay::nothing(outlets), now)
    }

    /// Goes on with what a journal holds, and with what is under way besides.
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
        // The system's clock may have been set back since.
        let now = now.max(last_seen);
        let stored = read_records(&journal.reader(), &engine)?;
        under_way.known.learn(&journal.reader());
        let mut actor = Actor {
            engine,
            reader: journal.reader(),
            journal,
            records: BTreeMap::new(),
            rows: Rows::default(),
            contacts: Contacts::default(),
            rates: BTreeMap::new(),
            stretches: BTreeMap::new(),
            evictions: BTreeMap::new(),
            launches: under_way.launches,
            launching: under_way.launching,
            relaunches: under_way.relaunches,
            surveyed: Surveyed::default(),
            found: BTreeMap::new(),
            waits: BTreeMap::new(),
            retries: BTreeMap::new(),
            looks: under_way.looks,
            looking: under_way.looking,
            keeping: under_way.keeping,
            known: under_way.known,
            remains: BTreeMap::new(),
            troubles: Troubles::default(),
            audit: Audit::default(),
            rows_since: None,
            entries_since_snapshot: u64::try_from(recovered.records.len()).unwrap_or(u64::MAX),
            last_seen,
            watched_at: now,
            anchor_synced_at: now,
            options,
        };
        if actor.options.survey.is_some() {
            actor.options.nodes = actor.nodes_of_last_life();
        }
        if recovered.are_read_models_ahead() {
            actor.rows.repairs = repairs(&actor.engine, actor.journal.last());
        }
        let with_folders = actor.jobs_with_folders();
        let given_out = actor.given_out(recovered.given_out, &with_folders)?;
        // Before anything is written: what is damaged is told, and isn't written upon unawares.
        actor.audit.begin(&actor.reader, given_out);
        actor.reconcile(stored, (given_out, with_folders), now)?;
        Ok(actor)
    }

    /// Brings everything in line with the replayed engine: records, nodes, supervisors, and decisions a crash cut off.
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
                record.price_attempt(&self.options.nodes);
                self.rows.jobs.insert(job.id);
            }
        }
    }

    /// The queues are what the configuration says.
    fn reconcile_sharing(&mut self, now: Timestamp, batch: &mut Batch) {
        if *self.engine.configuration() == self.options.sharing {
            return;
        }
        let event = Event::Configured(Arc::new(self.options.sharing.clone()));
        if let Err(refusal) = self.apply(now, event, batch) {
            warn!(%refusal, "the queues and prices stay as they were");
        }
        for record in self.records.values_mut().filter(|record| record.budget.is_some()) {
            record.meter(now, &self.engine);
            self.rows.jobs.insert(record.id);
        }
    }

    /// Nodes are what the configuration says; one it no longer names takes nothing new.
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
        // A rack may have moved with all its nodes: they leave the old place before the first is in the new one.
        for spec in &configured {
            if let Some((old, _)) = known.get(&spec.name).filter(|(old, _)| old.location != spec.location)
                && old.location != Location::default()
            {
                events.push(Event::NodeJoined(NodeSpec { location: Location::default(), ..old.clone() }));
            }
        }
        for spec in &configured {
            let is_same = known.get(&spec.name).is_some_and(|(old, status)| old == spec && *status != NodeStatus::Lost);
            if !is_same {
                events.push(Event::NodeJoined(spec.clone()));
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
    }

    /// Every supervisor of a live attempt gets its lease anew; one that a crash kept from being started is started.
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
