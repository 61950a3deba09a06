//! A control plane on a temporary folder, advanced one turn at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU32;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use gangline_api as api;
use gangline_base::{
    AcceleratorKind, Bytes, CheckpointPolicy, Epoch, GangShape, HangTimeout, JobId, JobSpec, Launch, Money, NodeName,
    PoolName, Priority, Program, QueueName, RecoveryPolicy, Submitter, Timestamp,
};
use gangline_execution::launcher::{LaunchError, Launcher, Presence, WantedGang};
use gangline_execution::protocol::agent::DatasetFetched;
use gangline_execution::protocol::{CacheReport, NodeFinding, Orders, Report, SupervisorSpec};
use gangline_orchestration::{Configuration, NodeCapacity, Snapshot};
use gangline_specs::config::NodeConfig;
use tempfile::TempDir;
use tokio::sync::oneshot;

use super::super::actor::Actor;
use super::super::handle::{DrainWish, Reply, Request};
use super::super::housekeeping::{self, CHORES_MAX, Chore};
use super::super::launch::{LAUNCHES_MAX, LaunchOutcome};
use super::super::looks::{LOOKS_MAX, Look, carry_out};
use super::super::{Error, Options, StartError, SurveyOptions, Timing};
use crate::delivery::Courier;
use crate::secret::Secrets;
use crate::views::{LifeSpan, Texts, Views, to_api};
use gangline_store::model::Booked;
use gangline_store::ports::Queries as _;
use gangline_store::{db, ports};

/// A launcher that starts nothing, and reports as present what a test says.
#[derive(Debug, Default)]
pub(super) struct Machines {
    pub(super) dead: Mutex<BTreeSet<PathBuf>>,
    pub(super) killed: Mutex<Vec<PathBuf>>,
    /// Supervisors that can't be killed.
    pub(super) undying: Mutex<BTreeSet<PathBuf>>,
    /// Presences that override the default.
    pub(super) told: Mutex<BTreeMap<PathBuf, Presence>>,
    /// Whether gangs wait for allocations by the launcher's own system.
    pub(super) allocates: AtomicBool,
    /// The gangs that wait for nodes, as the control plane last said; it says so only where this is set.
    pub(super) wanted: Mutex<Option<Vec<WantedGang>>>,
}

impl Launcher for Machines {
    fn launch(&self, gang: &[SupervisorSpec]) -> Vec<Result<(), LaunchError>> {
        gang.iter().map(|_| Ok(())).collect()
    }

    fn unenforced(&self, _image: Option<&str>) -> Option<&str> {
        Some("memory not enforced on these machines")
    }

    fn missing_for_image(&self, image: &str) -> Option<String> {
        image.ends_with(".sif").then(|| "apptainer isn't installed on these machines".to_owned())
    }

    fn presence(&self, folder: &Path) -> Result<Presence, LaunchError> {
        if let Some(presence) = self.told.lock().expect("no test panics while it holds this").get(folder) {
            return Ok(presence.clone());
        }
        let is_dead = self.dead.lock().expect("no test panics while it holds this").contains(folder);
        Ok(if is_dead { Presence::Gone } else { Presence::Running })
    }

    fn kill(&self, folder: &Path) -> Result<(), LaunchError> {
        if self.undying.lock().expect("no test panics while it holds this").contains(folder) {
            return Err(LaunchError::Fence { left: vec!["4711 (python3, state D)".to_owned()] });
        }
        self.killed.lock().expect("no test panics while it holds this").push(folder.to_owned());
        self.dead.lock().expect("no test panics while it holds this").insert(folder.to_owned());
        Ok(())
    }

    fn stays(&self, _folder: &Path, is_gang_over: bool) -> bool {
        !is_gang_over
    }

    fn asks_for_nodes(&self) -> bool {
        self.wanted.lock().expect("no test panics while it holds this").is_some()
    }

    fn want(&self, gangs: Vec<WantedGang>) {
        *self.wanted.lock().expect("no test panics while it holds this") = Some(gangs);
    }

    fn allocates(&self) -> bool {
        self.allocates.load(Ordering::Relaxed)
    }
}

/// A control plane under test, with its folder, launcher and clock.
pub(super) struct World {
    pub(super) folder: TempDir,
    pub(super) machines: Arc<Machines>,
    pub(super) nodes: Vec<NodeConfig>,
    /// If set, nodes come from the launcher.
    pub(super) survey: Option<SurveyOptions>,
    /// Delivers notices, if a test wants them delivered.
    pub(super) courier: Option<Courier>,
    pub(super) ended: Option<SyncSender<JobId>>,
    pub(super) sharing: Configuration,
    pub(super) journal: db::Options,
    pub(super) now: Timestamp,
    /// If set, the journal's housekeeper does nothing for now.
    pub(super) is_housekeeper_away: bool,
    /// None while the control plane is down.
    actor: Option<Actor>,
    gangs: Receiver<Vec<SupervisorSpec>>,
    looks: Receiver<Look>,
    chores: Receiver<Chore>,
}

/// Returns a node with CPU slots at 3.60 dollars an hour, a thousandth of a dollar for each second of a slot.
pub(super) fn node(name: &str, slots: u32) -> NodeConfig {
    NodeConfig {
        name: NodeName::new(name).expect("a valid name"),
        capacity: NodeCapacity {
            pool: PoolName::default(),
            accelerator: AcceleratorKind("cpu".to_owned()),
            accelerators: slots,
            cpus: 0,
            memory: Bytes(0),
        },
        location: Default::default(),
        layout: Default::default(),
        links_file: None,
        address: format!("{name}.test"),
        price_per_hour: Some(Money::from_nano_dollars(3_600_000_000)),
    }
}

/// Returns a job of `nodes` nodes with `slots` slots each.
pub(super) fn spec(name: &str, nodes: u32, slots: u32) -> JobSpec {
    let positive = |number| NonZeroU32::new(number).expect("a positive number");
    JobSpec {
        name: name.to_owned(),
        queue: QueueName::new("research").expect("a valid name"),
        priority: Priority::NORMAL,
        gang: GangShape {
            nodes: positive(nodes),
            pool: PoolName::default(),
            accelerator: AcceleratorKind("cpu".to_owned()),
            accelerators_per_node: positive(slots),
            cpus_per_node: 0,
            memory_per_node: Bytes(0),
            launch: Launch::PerAccelerator,
            topology: Default::default(),
        },
        elastic: None,
        program: Program {
            code: None,
            container: None,
            workdir: "/work".to_owned(),
            envs: [("LR".to_owned(), "3e-4".to_owned())].into(),
            setup: None,
            run: "train".to_owned(),
        },
        checkpoint: CheckpointPolicy { path: None, is_shared: false, grace: Duration::from_secs(7) },
        recovery: RecoveryPolicy {
            max_faults: 10,
            no_progress_limit: 10,
            hang_timeout: HangTimeout::Learned,
            evicts_stragglers: false,
        },
        time_limit: None,
        budget: None,
        spares: 0,
        datasets: Default::default(),
        planned: None,
        pins: Default::default(),
        after: Default::default(),
        notify: Default::default(),
        origin: None,
        submitter: Submitter("ada".to_owned()),
    }
}

impl World {
    pub(super) fn new(nodes: &[(&str, u32)]) -> World {
        World::with_journal(nodes, db::Options::default())
    }

    pub(super) fn with_journal(nodes: &[(&str, u32)], journal: db::Options) -> World {
        let (_, gangs) = sync_channel(1);
        let (_, looks) = sync_channel(1);
        let (_, chores) = sync_channel(1);
        let mut world = World {
            folder: tempfile::tempdir().expect("the temporary folder is writable"),
            machines: Arc::default(),
            nodes: nodes.iter().map(|(name, slots)| node(name, *slots)).collect(),
            survey: None,
            courier: None,
            ended: None,
            sharing: Configuration::default(),
            journal,
            now: Timestamp::from_unix_nanos(1_700_000_000_000_000_000),
            is_housekeeper_away: false,
            actor: None,
            gangs,
            looks,
            chores,
        };
        world.open().expect("a new folder opens");
        world
    }

    fn options(&self) -> Options {
        Options {
            folder: self.folder.path().to_owned(),
            journal_folder: self.folder.path().to_owned(),
            nodes: self.nodes.clone(),
            survey: self.survey,
            sharing: self.sharing.clone(),
            cache_quotas: std::collections::BTreeMap::new(),
            limits: gangline_orchestration::Limits::default(),
            retention: gangline_specs::config::Retention::DEFAULT,
            billing: gangline_specs::config::Billing::default(),
            launcher: self.machines.clone(),
            clock: || unreachable!("the tests say what time it is"),
            user: Submitter("ada".to_owned()),
            secrets: Secrets::open(self.folder.path()).expect("the folder is writable"),
            journal: self.journal,
            on_journal_failure: Default::default(),
            notice_source: None,
            agent_every: None,
            courier: self.courier.clone(),
            ended: self.ended.clone(),
            timing: Timing::default(),
        }
    }

    pub(super) fn open(&mut self) -> Result<(), StartError> {
        let (launches, gangs) = sync_channel(LAUNCHES_MAX);
        let (looking, looks) = sync_channel(LOOKS_MAX);
        let (housekeeping, chores) = sync_channel(CHORES_MAX);
        let actor = Actor::open(self.options(), (launches, looking, housekeeping), self.now)?;
        (self.actor, self.gangs, self.looks, self.chores) = (Some(actor), gangs, looks, chores);
        Ok(())
    }

    /// Takes one turn, and then one for each look and chore that follows from it.
    fn turn(&mut self, requests: impl Iterator<Item = Request>) {
        let now = self.now;
        self.actor().turn(now, requests);
        while let Ok(look) = self.looks.try_recv() {
            let machines = Arc::clone(&self.machines);
            if let Some(found) = carry_out(machines.as_ref(), look) {
                self.actor().turn(now, [found].into_iter());
            }
        }
        while let Some(chore) = (!self.is_housekeeper_away).then(|| self.chores.try_recv().ok()).flatten() {
            self.actor().turn(now, [housekeeping::carry_out(chore)].into_iter());
        }
    }

    pub(super) fn actor(&mut self) -> &mut Actor {
        self.actor.as_mut().expect("the control plane is up")
    }

    /// Returns the engine's state without the epoch of this start and the time that it began at.
    pub(super) fn state(&mut self) -> Snapshot {
        Snapshot { epoch: Epoch::default(), at: Timestamp::EPOCH, ..self.actor().engine.snapshot() }
    }

    /// Crashes: what isn't committed is lost.
    pub(super) fn crash(&mut self) {
        self.actor = None;
    }

    pub(super) fn crash_and_restart(&mut self) {
        self.crash();
        self.open().expect("the folder opens again");
    }

    /// Checks whether a failed journal can be written again.
    pub(super) fn heal(&mut self) {
        let actor = self.actor.take().expect("the control plane is up");
        self.actor = Some(actor.heal(self.now).expect("what is durable can be gone on with"));
    }

    pub(super) fn stop(&mut self) {
        let now = self.now;
        assert!(self.actor().turn(now, [Request::Stop].into_iter()), "it was asked to stop");
        self.actor().snapshot();
        self.actor = None;
    }

    /// Returns another world with a copy of this one's folder, which is down.
    pub(super) fn copy(&self) -> World {
        assert!(self.actor.is_none(), "a folder that is written to isn't copied so");
        let (_, gangs) = sync_channel(1);
        let (_, looks) = sync_channel(1);
        let (_, chores) = sync_channel(1);
        let folder = tempfile::tempdir().expect("the temporary folder is writable");
        copy_files(self.folder.path(), folder.path());
        for beside in [db::HISTORY, db::SNAPSHOTS]
            .map(Path::new)
            .into_iter()
            .filter(|beside| self.folder.path().join(beside).is_dir())
        {
            std::fs::create_dir(folder.path().join(beside)).expect("the folder is ours");
            copy_files(&self.folder.path().join(beside), &folder.path().join(beside));
        }
        let (machines, nodes, sharing) = (Arc::clone(&self.machines), self.nodes.clone(), self.sharing.clone());
        let (survey, journal, now, is_housekeeper_away, actor) = (self.survey, self.journal, self.now, false, None);
        let courier = self.courier.clone();
        World {
            folder,
            machines,
            nodes,
            survey,
            courier,
            ended: None,
            sharing,
            journal,
            now,
            is_housekeeper_away,
            actor,
            gangs,
            looks,
            chores,
        }
    }

    pub(super) fn health(&mut self) -> api::Health {
        self.ask(|reply| Request::Health { reply }).expect("it is a question")
    }

    /// Advances the clock by `time` and takes one turn without requests.
    pub(super) fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        self.turn(std::iter::empty());
    }

    /// Advances the clock by `time`, in steps too short to look as if the machine had slept.
    pub(super) fn pass_slowly(&mut self, time: Duration) {
        let step = Duration::from_secs(1);
        for _ in 0..time.as_secs() {
            self.pass(step);
        }
    }

    /// Takes one turn with one request and returns its answer.
    pub(super) fn ask<T>(&mut self, request: impl FnOnce(Reply<T>) -> Request) -> Result<T, Error> {
        let (reply, mut answer) = oneshot::channel();
        self.turn([request(reply)].into_iter());
        answer.try_recv().expect("every request is answered in its turn")
    }

    /// Takes one turn with a request whose answer nobody waits for.
    pub(super) fn request(&mut self, request: Request) {
        self.turn([request].into_iter());
    }

    /// Returns the nodes as the API shows them.
    pub(super) fn nodes(&mut self) -> Vec<api::Node> {
        self.ask(|reply| Request::Nodes { reply }).expect("it is a question").nodes
    }

    pub(super) fn submit(&mut self, spec: JobSpec) -> JobId {
        let taken = self.ask(|reply| Request::Submit { spec: Box::new(spec), reply }).expect("a sound job");
        submitted(taken).job.parse().expect("a job's id")
    }

    pub(super) fn cancel(&mut self, job: JobId) -> Result<api::CancelAnswer, Error> {
        self.ask(|reply| Request::Cancel { job, by: Submitter("ada".to_owned()), reply })
    }

    pub(super) fn drain(&mut self, name: &str, wish: DrainWish) -> Result<api::Node, Error> {
        let node = NodeName::new(name).expect("a valid name");
        self.ask(|reply| Request::Drain { node, wish, reply })
    }

    /// Says what a node's agent says of its cache, and returns what it is to fetch.
    pub(super) fn agent_cached(&mut self, name: &str, cache: Option<CacheReport>) -> Result<Vec<String>, Error> {
        let node = NodeName::new(name).expect("a valid name");
        let wanted = self.ask(|reply| Request::AgentCached { node, cache, reply })?;
        Ok(wanted.into_iter().map(|wanted| wanted.dataset).collect())
    }

    pub(super) fn agent_fetched(&mut self, name: &str, fetched: Vec<DatasetFetched>) {
        let node = NodeName::new(name).expect("a valid name");
        self.ask(|reply| Request::AgentFetched { node, fetched, reply }).expect("it is noted");
    }

    pub(super) fn agent_found(&mut self, name: &str, finding: NodeFinding) -> Result<(), Error> {
        let node = NodeName::new(name).expect("a valid name");
        self.ask(|reply| Request::AgentFound { node, finding, reply })
    }

    pub(super) fn report(&mut self, report: &Report) -> Orders {
        self.ask(|reply| Request::Report { report: Box::new(report.clone()), reply }).expect("a report is answered")
    }

    /// Takes what the launching thread would start now.
    pub(super) fn launches(&mut self) -> Vec<SupervisorSpec> {
        self.gangs.try_iter().flatten().collect()
    }

    /// Takes what is to be launched, and reports that it was.
    pub(super) fn launch(&mut self) -> Vec<SupervisorSpec> {
        let specs = self.launches();
        for spec in &specs {
            self.launched(spec, None);
        }
        specs
    }

    pub(super) fn launched(&mut self, spec: &SupervisorSpec, failure: Option<&str>) {
        let now = self.now;
        let outcome = failure.map_or(LaunchOutcome::Started, |failure| LaunchOutcome::Failed(failure.to_owned()));
        let request = Request::Launched { gang: vec![(spec.clone(), outcome)] };
        self.actor().turn(now, [request].into_iter());
    }

    pub(super) fn dies(&self, spec: &SupervisorSpec) {
        self.machines.dead.lock().expect("no test panics while it holds this").insert(spec.folder.clone());
    }

    /// Returns the durable state of a job.
    pub(super) fn stored(&mut self, job: JobId) -> Option<(api::Job, Vec<Booked>)> {
        let reader = self.actor().journal.reader();
        let found = reader.job(job).expect("the read models are readable");
        found.map(|(record, booked)| (to_api(Path::new("/data"), &record, &booked, Texts::Whole), booked))
    }

    /// Returns the spans of a job that has ended.
    pub(super) fn life(&mut self, job: JobId) -> Option<Vec<LifeSpan>> {
        let views = Views::new(self.actor().journal.reader(), "/data".into());
        views.life(job).expect("the read models are readable")
    }

    pub(super) fn show(&mut self, job: JobId) -> api::Job {
        let views = Views::new(self.actor().journal.reader(), "/data".into());
        views.job(job).expect("the read models are readable").expect("the job is there")
    }

    pub(super) fn ledger(&mut self, job: JobId) -> Vec<Booked> {
        self.stored(job).expect("the job is there").1
    }

    /// Returns the step of the job's last durable sample, by its loss ([`super::Supervisor::steps`]).
    pub(super) fn sampled(&mut self, job: JobId) -> Option<u64> {
        let loss = self.show(job).progress.loss?;
        (1..1_000).find(|step| (super::supervisor::loss_at(*step) - loss).abs() < 1e-9)
    }

    /// Returns a connection to the database, past the control plane.
    pub(super) fn database(&self) -> rusqlite::Connection {
        rusqlite::Connection::open(self.folder.path().join("journal.sqlite")).expect("the database opens")
    }

    /// Changes the read models of a folder that no control plane holds.
    pub(super) fn change_rows(&self, changes: ports::Changes<'_>) {
        let (mut journal, _) = db::Journal::open(self.folder.path(), self.journal).expect("nobody holds the folder");
        let batch = ports::Batch { records: &[], given_out: JobId(0), changes };
        journal.commit(batch).expect("there is room");
    }
}

/// Returns the answer to an accepted job.
pub(super) fn submitted(answer: api::Answer) -> api::Submitted {
    match answer {
        api::Answer::Submitted(submitted) => submitted,
        other => panic!("not a job that was taken: {other:?}"),
    }
}

fn copy_files(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).expect("the folder is readable").flatten() {
        if entry.path().is_file() {
            std::fs::copy(entry.path(), to.join(entry.file_name())).expect("there is room");
        }
    }
}
