//! Slurm as an engine. Each gang becomes one Slurm job on exactly the nodes that were chosen for it, with one
//! step on each node that runs a supervisor; or it becomes steps in jobs that hold whole nodes
//! ([`Allocation::Pool`], [`Allocation::Queue`]). Nodes, their external usage and the state of gangs are read from `sinfo` and
//! `squeue`.
//!
//! Nothing here needs root, and several gangs may share a node. The data folder is on a file system that all
//! nodes share, as it holds the supervisors' specs and final reports.
//!
//! Only [`Launcher::survey`] queries Slurm, periodically and on a thread that may wait;
//! [`Launcher::presence`] and [`Launcher::kill`] use the last query and files, so they never wait for Slurm.
//! Keeps A-5 (killed processes count as gone only once Slurm says so) and A-13 (while Slurm is silent nothing
//! is taken for gone).

pub mod advice;
mod command;
mod demand;
mod gres;
mod hostlist;
mod jobs;
mod json;
mod limits;
mod nodes;
mod options;
mod pace;
mod policies;
mod pool;
pub mod private;
mod probes;
mod record;
mod refusals;
mod reservations;
mod script;
mod settings;
pub mod setup;
mod share;
mod sizes;
mod snapshot;
mod topology;
mod trial;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

pub use gres::gpus;
pub use options::SlurmOptions;
pub use pool::Allocation;
pub use script::JobOptions;
pub use topology::{InvalidTopology, Places, read_topology};

use super::spec::{last_words, write_spec};
use super::{FINAL_REPORT_FILE, GangAllocation, GangLimit, LaunchError, Launcher, Presence, SurveyedNode, WantedGang};
use crate::protocol::SupervisorSpec;
use command::{Programs, SLURM};
use demand::Demand;
use jobs::{SlurmJob, Stage};
use limits::Limits;
use nodes::SlurmNode;
use pace::Pace;
use probes::{Probes, Verdict};
use record::Record;
use refusals::Refusals;
use script::{Slice, gang_folder, step_name};
use share::{began_before, has_ended, has_signed, have_others_ended, is_in_pool, job_folder, node_of, was_unable};
use snapshot::{Snapshot, default_partition};

/// How long a supervisor whose attempt has ended waits for a control plane that is away: meanwhile the gang keeps its nodes.
const END_WAIT_MS: u64 = 30_000;
/// Results of a query older than this say nothing about the present.
const SIGHT_AGE_MAX: Duration = Duration::from_secs(10);
/// Results of a query that are older are renewed if somebody asks about a silent supervisor.
const SILENT_SIGHT_AGE: Duration = Duration::from_secs(2);
/// What Slurm says of the partition is asked for again after this time: administrators seldom change it.
const LIMITS_AGE_MAX: Duration = Duration::from_mins(10);
/// If a step is still there this long after it was killed, its job is ended.
const STEP_KILL_WAIT: Duration = Duration::from_secs(3);

/// How long the other shares of a gang may take to stop in order once one of its nodes is unreachable.
const PEERS_WAIT: Duration = Duration::from_mins(2);

/// Launches through Slurm.
#[derive(Debug)]
pub struct SlurmLauncher {
    options: SlurmOptions,
    programs: Programs,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Slurm's default partition, once it is known.
    default_partition: Option<String>,
    /// What jobs may take there, and when Slurm said so.
    limits: Option<(Instant, Limits)>,
    /// Result of the last query.
    snapshot: Option<Snapshot>,
    /// Whether queried nodes respond.
    probes: Probes,
    /// How soon Slurm is queried again.
    pace: Pace,
    /// Time when each gang was submitted by this process, or first seen pending, by its folder.
    waiting_since: BTreeMap<PathBuf, Instant>,
    /// Shares to kill, by folder, and the time of the first attempt.
    kills: BTreeMap<PathBuf, Instant>,
    /// Jobs that this process has cancelled, as long as Slurm knows them.
    cancelled: BTreeSet<u64>,
    /// Jobs that this process has ended whole, holding jobs among them, as long as Slurm knows them.
    given_back: BTreeSet<u64>,
    /// Time when a holding job was last requested for each node that the pool lacks, or for a gang.
    held_at: BTreeMap<String, Instant>,
    /// The gangs for which nodes are asked for in Slurm's queue.
    demand: Demand,
    /// Gangs that wait for their nodes in vain, and nodes that take no gang because of it.
    refusals: Refusals,
}

impl SlurmLauncher {
    /// Creates a launcher; doesn't query Slurm yet.
    #[must_use]
    pub fn new(options: SlurmOptions) -> Self {
        let programs = Programs::new(options.environment.clone());
        SlurmLauncher { options, programs, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds what Slurm said")
    }

    /// Queries Slurm's nodes and jobs.
    fn look(&self) -> Result<Snapshot, LaunchError> {
        let known = self.options.job.partition.clone().or_else(|| self.state().default_partition.clone());
        let partition = match known {
            Some(partition) => partition,
            None => default_partition(&self.programs)?,
        };
        let snapshot = Snapshot::take(&self.programs, &partition)?;
        let limits = self.state().limits.clone().filter(|(at, _)| at.elapsed() < LIMITS_AGE_MAX);
        let limits = match limits {
            Some(known) => known,
            None => (Instant::now(), self.limits_of(&partition)?),
        };
        let mut state = self.state();
        (state.default_partition, state.limits) = (Some(partition), Some(limits));
        drop(state);
        Ok(snapshot)
    }

    /// Submits a gang unless it is in Slurm already.
    fn submit(&self, gang: &[SupervisorSpec]) -> Result<(), LaunchError> {
        let Some(first) = gang.first() else { return Ok(()) };
        let folder = gang_folder(&first.folder);
        if self.is_submitted(&folder)? {
            return Ok(());
        }
        let snapshot = match self.state().snapshot.clone() {
            Some(snapshot) => snapshot,
            None => self.look()?,
        };
        for spec in gang {
            // A control plane that hasn't seen the nodes yet knows only their names.
            let address = snapshot.node(&spec.node).map_or_else(|| spec.address.clone(), |node| node.address.clone());
            let end_wait_ms = Some(END_WAIT_MS);
            write_spec(&SupervisorSpec { keeps_visible_devices: true, address, end_wait_ms, ..spec.clone() })?;
        }
        let nodes: Vec<_> = gang.iter().filter_map(|spec| snapshot.node(&spec.node)).collect();
        let slice = Slice::of(gang, &nodes);
        let path = record::write_script(&folder, &script::script(gang, &slice, &self.options.program, None))?;
        let options = self.options.job_of(&first.queue);
        let mut arguments = script::sbatch(gang, &slice, options, (&folder, &self.limits(&first.queue)));
        arguments.push(path.display().to_string());
        record::announce(&folder)?;
        let output = self.programs.run("sbatch", &arguments)?;
        let mut state = self.state();
        state.waiting_since.insert(folder.clone(), Instant::now());
        state.pace.changed();
        drop(state);
        Record { job: record::job_id(&output)? }.write(&folder)
    }

    /// Reports whether a gang has a Slurm job. If the control plane ended during the submission, the job is
    /// searched for.
    fn is_submitted(&self, folder: &Path) -> Result<bool, LaunchError> {
        if Record::read(folder)?.is_some() {
            return Ok(true);
        }
        if !record::is_announced(folder) {
            return Ok(false);
        }
        let snapshot = self.look()?;
        match snapshot.job_of(folder, None) {
            Some(job) => Record { job: job.id }.write(folder).map(|()| true),
            None => Ok(false),
        }
    }

    /// Returns the state of a share's job at the last query, if that is recent enough.
    fn seen(&self, share: &Path) -> Result<GangState, LaunchError> {
        let folder = &job_folder(share);
        let record = Record::read(folder)?;
        let mut state = self.state();
        if state.snapshot.as_ref().is_none_or(|snapshot| snapshot.at.elapsed() > SIGHT_AGE_MAX) {
            state.pace.changed();
        }
        let snapshot = state.snapshot.as_ref().filter(|snapshot| snapshot.at.elapsed() <= SIGHT_AGE_MAX);
        let silent =
            || LaunchError::Unavailable { system: SLURM, message: "it has said nothing for a while".to_owned() };
        let snapshot = snapshot.ok_or_else(silent)?;
        let submitted_at = state.waiting_since.get(folder).copied();
        if submitted_at.is_some_and(|at| at >= snapshot.at) {
            return Ok(GangState::TooNew);
        }
        let job = snapshot.job_of(folder, record.as_ref().map(|record| record.job)).cloned();
        Ok(match job {
            Some(job) if job.stage != Stage::Over => {
                // The shell that records a step's end may be lost with the gang's first node.
                let is_unlisted = snapshot.lacks_step(job.id, &step_name(share));
                let has_begun = began_before(share, snapshot.at)
                    || is_in_pool(share) && submitted_at.is_some_and(|at| at.elapsed() > pool::STEP_START_MAX);
                match has_ended(share) {
                    false if is_in_pool(share) && is_unlisted && !has_begun => GangState::TooNew,
                    has_ended => GangState::Job { job, is_over: has_ended || is_unlisted && has_begun },
                }
            }
            _ => GangState::Nothing,
        })
    }

    /// Returns the job of a share if the share still has a process there.
    fn job_of_share<'a>(snapshot: &'a Snapshot, share: &Path) -> Option<&'a SlurmJob> {
        let folder = job_folder(share);
        // An unreadable record is met again where its error is reported.
        let record = Record::read(&folder).ok().flatten().map(|record| record.job);
        let job = snapshot.job_of(&folder, record).filter(|job| job.stage != Stage::Over)?;
        let node = node_of(share);
        let is_there = job.is_waiting() || job.nodes.iter().any(|(name, _)| *name == node);
        let is_step_there = || !is_in_pool(share) || snapshot.step(job.id, &step_name(share)).is_some();
        (is_there && is_step_there()).then_some(job)
    }

    /// Asks Slurm to kill the shares that are to be killed and still there.
    fn carry_out_kills(&self, snapshot: &Snapshot) -> Result<(), LaunchError> {
        let wanted: Vec<(PathBuf, Instant)> = {
            let mut state = self.state();
            let State { kills, probes, .. } = &mut *state;
            // While a node is unreachable nobody can tell whether a step has ended there.
            let is_left = |share: &Path| !has_ended(share) || probes.verdict(&node_of(share)) == Verdict::Unreachable;
            kills.retain(|share, _| is_left(share) && Self::job_of_share(snapshot, share).is_some());
            kills.iter().map(|(share, since)| (share.clone(), *since)).collect()
        };
        let mut ended = BTreeSet::new();
        for (share, since) in wanted {
            let Some(job) = Self::job_of_share(snapshot, &share) else { continue };
            let verdict = self.verdict(snapshot, &node_of(&share));
            let is_deaf = verdict == Verdict::Unreachable;
            let step = snapshot.step(job.id, &step_name(&share)).filter(|_| !is_deaf && !job.is_waiting());
            // In a pool, the job may have other gangs' steps too.
            let patience = if is_in_pool(&share) { PEERS_WAIT } else { STEP_KILL_WAIT };
            match step {
                // To kill a step scancel contacts its node, and waits ten seconds for one that is lost
                // (slurm_send_addr_recv_msgs, 22.05).
                Some(_) if verdict == Verdict::Unknown && since.elapsed() <= patience => {}
                Some(step) if since.elapsed() <= patience => {
                    self.cancel(&["--signal=KILL".to_owned(), step.id.clone()])?;
                }
                _ if is_deaf && since.elapsed() <= PEERS_WAIT && !have_others_ended(snapshot, job.id, &share) => {}
                _ if ended.insert(job.id) => self.end_job(job)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Ends a job with all that is left of it. A job that is ending is cancelled again when a node that was
    /// cut off responds again: the node is then free within seconds (seen with 22.05), otherwise only when
    /// slurmctld contacts it next, which takes a minute or more.
    fn end_job(&self, job: &SlurmJob) -> Result<(), LaunchError> {
        let is_back = |node: &str| self.is_deaf(node) && self.state().probes.has_answered(node);
        if job.stage == Stage::Completing && !job.nodes.iter().any(|(node, _)| is_back(node)) {
            return Ok(());
        }
        self.state().given_back.insert(job.id);
        self.cancel(&[job.id.to_string()])
    }

    fn cancel(&self, arguments: &[String]) -> Result<(), LaunchError> {
        let job = |id: &String| id.split(['.', '_', '+']).next()?.parse::<u64>().ok();
        self.state().cancelled.extend(arguments.iter().filter_map(job));
        match self.programs.run("scancel", arguments) {
            // A job that is over can't be cancelled.
            Ok(_) | Err(LaunchError::Refused { .. }) => Ok(()),
            Err(failure) => Err(failure),
        }
    }
}

/// State of a gang in Slurm.
enum GangState {
    /// It was submitted after the last query, or its step is about to start.
    TooNew,
    Job {
        job: SlurmJob,
        /// The share's step is over.
        is_over: bool,
    },
    /// It has no job, or no longer one.
    Nothing,
}

impl Launcher for SlurmLauncher {
    fn launch(&self, gang: &[SupervisorSpec]) -> Vec<Result<(), LaunchError>> {
        if self.options.allocation.holds_nodes() {
            return gang.iter().map(|spec| self.start_step(spec)).collect();
        }
        let Err(failure) = self.submit(gang) else { return gang.iter().map(|_| Ok(())).collect() };
        // The whole gang failed for one reason, which is reported in words for each.
        let is_silence = matches!(failure, LaunchError::Unavailable { .. });
        let message = match &failure {
            LaunchError::Unavailable { message, .. } | LaunchError::Refused { message, .. } => message.clone(),
            other => gangline_base::with_causes(other),
        };
        let told = |_: &SupervisorSpec| match is_silence {
            true => Err(LaunchError::Unavailable { system: SLURM, message: message.clone() }),
            false => Err(LaunchError::Refused { system: SLURM, message: message.clone() }),
        };
        gang.iter().map(told).collect()
    }

    fn presence(&self, folder: &Path) -> Result<Presence, LaunchError> {
        let node = node_of(folder);
        let (job, is_over) = match self.seen(folder)? {
            GangState::TooNew => (None, false),
            GangState::Job { job, is_over } => (Some(job), is_over),
            GangState::Nothing if was_unable(folder) => return Ok(Presence::Unable { why: last_words(folder) }),
            // Without a job that holds its node, no step begins.
            GangState::Nothing if has_ended(folder) && !is_in_pool(folder) || has_signed(folder) => {
                return Ok(Presence::Gone);
            }
            GangState::Nothing => {
                // Who cancelled it should be known before the job is placed again.
                self.state().pace.changed();
                return Ok(Presence::Withdrawn);
            }
        };
        if is_over && was_unable(folder) {
            return Ok(Presence::Unable { why: last_words(folder) });
        }
        let mut state = self.state();
        if job.as_ref().is_none_or(SlurmJob::is_waiting) {
            let since = state.waiting_since.entry(job_folder(folder)).or_insert_with(Instant::now).elapsed();
            let is_pending = job.as_ref().is_some_and(|job| job.stage == Stage::Pending);
            let is_overdue = is_pending && state.refusals.has_gang(&job_folder(folder));
            let why = job.map(|job| format!("in Slurm's queue: {}", job.why())).unwrap_or_default();
            return Ok(Presence::Waiting { since, why, is_overdue });
        }
        // A supervisor that runs is asked about because it is silent, and that may go on.
        if state.snapshot.as_ref().is_none_or(|snapshot| snapshot.at.elapsed() > SILENT_SIGHT_AGE) {
            state.pace.changed();
        }
        let holds = job.is_some_and(|job| job.nodes.iter().any(|(name, _)| *name == node));
        if !holds || folder.join(FINAL_REPORT_FILE).exists() && is_over {
            return Ok(Presence::Gone);
        }
        // A step without a recorded end may have ended alone or with its node, which then must not be used
        // again.
        if let Some(node) = state.snapshot.as_ref().and_then(|snapshot| snapshot.node(&node)) {
            state.probes.want(node);
        }
        Ok(match state.probes.verdict(&node) {
            Verdict::Unreachable => Presence::Unreachable,
            Verdict::Answers if is_over => Presence::Gone,
            Verdict::Answers | Verdict::Unknown => Presence::Running,
        })
    }

    fn kill(&self, folder: &Path) -> Result<(), LaunchError> {
        let node = node_of(folder);
        let is_there = match self.seen(folder)? {
            GangState::TooNew => true,
            GangState::Job { job, .. } if job.is_waiting() => true,
            GangState::Job { job, is_over } => {
                (!is_over || self.is_deaf(&node)) && job.nodes.iter().any(|(name, _)| *name == node)
            }
            GangState::Nothing => false,
        };
        if !is_there {
            return Ok(());
        }
        let mut state = self.state();
        if !state.kills.contains_key(folder) {
            state.kills.insert(folder.to_owned(), Instant::now());
            state.pace.changed();
        }
        drop(state);
        Err(LaunchError::Leaving { what: format!("Slurm hasn't said yet that its job has left {node}") })
    }

    /// A cancelled job leaves a node at once if it has a step there: slurmd reports the step's end. Without a
    /// step (and without an epilog) slurmd has nothing to report, and slurmctld learns that the node is free
    /// from the answers of all of the job's nodes together, for which it waits ten seconds if one of them is
    /// lost (`_rpc_terminate_job` of slurmd's req.c and `_thread_per_group_rpc` of slurmctld's agent.c,
    /// 22.05).
    fn stays(&self, share: &Path, is_gang_over: bool) -> bool {
        let gang = gang_folder(share);
        let is_killed = || self.state().kills.keys().any(|killed| gang_folder(killed) == gang);
        !is_in_pool(share) && (!is_gang_over || is_killed())
    }

    fn allocates(&self) -> bool {
        !self.options.allocation.holds_nodes()
    }

    fn asks_for_nodes(&self) -> bool {
        self.options.allocation == Allocation::Queue
    }

    fn want(&self, gangs: Vec<WantedGang>) {
        let mut state = self.state();
        if state.demand.replace(gangs) {
            // The request for its nodes is made after a query.
            state.pace.changed();
        }
    }

    fn allocations(&self) -> Vec<(PathBuf, GangAllocation)> {
        let gangs = self.options.folder.join("jobs");
        let state = self.state();
        state.snapshot.iter().flat_map(|snapshot| snapshot.allocations(&gangs, &state.cancelled)).collect()
    }

    fn longest_run(&self, queue: &str) -> Option<(Duration, String)> {
        self.limits(queue).max.map(|longest| (longest.time, longest.why))
    }

    fn largest_gang(&self, queue: &str) -> Vec<GangLimit> {
        self.sizes(queue)
    }

    fn survey_interval(&self, has_jobs: bool) -> Duration {
        let begun_at = (self.options.allocation == Allocation::Queue).then(|| demand::begun_at(&self.options.folder));
        let mut state = self.state();
        if state.demand.has_begun(begun_at.flatten()) {
            state.pace.changed();
        }
        state.pace.interval(has_jobs)
    }

    fn survey(&self) -> Result<Option<Vec<SurveyedNode>>, LaunchError> {
        let snapshot = self.look()?;
        let are_steps_needed = pool::has_holders(&self.options, &snapshot) || !self.state().kills.is_empty();
        let snapshot = if are_steps_needed { snapshot.with_steps(&self.programs)? } else { snapshot };
        self.follow_refusals(&snapshot)?;
        {
            let mut state = self.state();
            // The holding job of a node that was lost is dead, though Slurm may not say so yet.
            let is_held = |node: &str| {
                self.options.allocation.holds_nodes() && pool::holder(&self.options, &snapshot, node).is_some()
            };
            state.probes.revisit(&snapshot, |node| !snapshot.is_leaving(node) && !is_held(node));
            let may_start = |folder: &Path, at: &Instant| is_in_pool(folder) && at.elapsed() < pool::STEP_START_MAX * 2;
            let waits = |folder: &Path, at: &Instant| {
                *at >= snapshot.at || may_start(folder, at) || snapshot.job_of(folder, None).is_some()
            };
            state.waiting_since.retain(|folder, at| waits(folder, at));
            state.cancelled.retain(|job| snapshot.has_job(*job));
            state.given_back.retain(|job| snapshot.has_job(*job));
            state.snapshot = Some(snapshot.clone());
        }
        self.carry_out_kills(&snapshot)?;
        match self.options.allocation {
            Allocation::Pool { nodes } => self.hold(&snapshot, nodes)?,
            Allocation::Queue => self.follow_demand(&snapshot)?,
            Allocation::Job => self.release(&snapshot)?,
        }
        // The nodes are described last, since one that has just been given back is closed at once.
        let state = self.state();
        let closed = |node: &SlurmNode| self.refusal_of(node, &snapshot, &state);
        Ok(Some(snapshot.surveyed(&self.options, &state.probes, state.demand.refusal.as_deref(), &closed)))
    }
}
