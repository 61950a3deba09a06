//! Slurm as an engine: each gang becomes one Slurm job on exactly the nodes that were chosen for it, with one step a node
//! that runs a supervisor. Nodes, what others hold of them and how gangs fare are read from `sinfo` and `squeue`.
//!
//! Nothing here needs root, and several gangs share a node. The data folder is on a file system that all nodes share, as it
//! holds the supervisors' specs and final reports.
//!
//! Slurm is asked in [`Launcher::survey`] only, again and again by a thread that may wait; [`Launcher::presence`] and
//! [`Launcher::kill`] go by what was seen last and by what is on the disk, so they never wait for Slurm. Keeps A-5 (what is killed counts as gone
//! only once Slurm says so) and A-13 (while Slurm is silent nothing is taken for gone).

mod command;
mod gres;
mod hostlist;
mod jobs;
mod json;
mod nodes;
pub mod private;
mod record;
mod script;
mod sight;
mod topology;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

pub use script::JobOptions;
pub use topology::{InvalidTopology, Places, read_topology};

use super::spec::write_spec;
use super::{FINAL_REPORT_FILE, LaunchError, Launcher, Presence, SurveyedNode};
use crate::protocol::SupervisorSpec;
use crate::supervisor::IDENTITY_FILE;
use command::{Programs, SLURM};
use jobs::{SlurmJob, Stage};
use record::Record;
use script::{STEP_END_FILE, Slice, gang_folder, step_name};
use sight::{Probes, Sight, Verdict, default_partition};

/// What is seen longer ago than this says nothing of now.
const SIGHT_AGE_MAX: Duration = Duration::from_secs(10);
/// A step that is still there so long after it was killed is taken down with its job.
const STEP_KILL_WAIT: Duration = Duration::from_secs(3);

/// So long the other shares of a gang may take to stop in order once one of its nodes doesn't answer.
const PEERS_WAIT: Duration = Duration::from_mins(2);

/// What the launcher is told.
#[derive(Clone)]
pub struct SlurmOptions {
    /// The program that supervises, at the same place on every node.
    pub program: PathBuf,
    /// The data folder: jobs with a comment below it are this control plane's.
    pub folder: PathBuf,
    /// The environment of Slurm's programs and of the jobs.
    pub environment: BTreeMap<OsString, OsString>,
    /// On whose account, and where, jobs run.
    pub job: JobOptions,
    /// How long a job may wait in Slurm's queue before its gang is placed elsewhere.
    pub pending_max: Duration,
    /// Where nodes are in the network.
    pub places: Places,
}

impl fmt::Debug for SlurmOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SlurmOptions").field("folder", &self.folder).field("job", &self.job).finish_non_exhaustive()
    }
}

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
    /// What Slurm said last.
    sight: Option<Sight>,
    /// Whether nodes answer that were asked after.
    probes: Probes,
    /// When gangs, by their folders, were submitted by this process, or first seen waiting.
    waiting_since: BTreeMap<PathBuf, Instant>,
    /// Shares, by their folders, that are to be killed, and since when.
    kills: BTreeMap<PathBuf, Instant>,
}

impl SlurmLauncher {
    /// A launcher; it asks Slurm nothing yet.
    #[must_use]
    pub fn new(options: SlurmOptions) -> Self {
        let programs = Programs::new(options.environment.clone());
        SlurmLauncher { options, programs, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no thread panics while it holds what Slurm said")
    }

    /// Asks Slurm for its nodes and jobs.
    fn look(&self) -> Result<Sight, LaunchError> {
        let known = self.options.job.partition.clone().or_else(|| self.state().default_partition.clone());
        let partition = match known {
            Some(partition) => partition,
            None => default_partition(&self.programs)?,
        };
        let sight = Sight::take(&self.programs, &partition)?;
        self.state().default_partition = Some(partition);
        Ok(sight)
    }

    /// Submits a gang unless it is in Slurm already.
    fn submit(&self, gang: &[SupervisorSpec]) -> Result<(), LaunchError> {
        let Some(first) = gang.first() else { return Ok(()) };
        let folder = gang_folder(&first.folder);
        if self.is_submitted(&folder)? {
            return Ok(());
        }
        let sight = match self.state().sight.clone() {
            Some(sight) => sight,
            None => self.look()?,
        };
        for spec in gang {
            // A control plane that hasn't seen the nodes yet knows their names only.
            let address = sight.node(&spec.node).map_or_else(|| spec.address.clone(), |node| node.address.clone());
            write_spec(&SupervisorSpec { keeps_visible_devices: true, address, ..spec.clone() })?;
        }
        let nodes: Vec<_> = gang.iter().filter_map(|spec| sight.node(&spec.node)).collect();
        let slice = Slice::of(gang, &nodes);
        let path = record::write_script(&folder, &script::script(gang, &slice, &self.options.program))?;
        let mut arguments = script::sbatch(gang, &slice, &self.options.job, &folder);
        arguments.push(path.display().to_string());
        record::announce(&folder)?;
        let output = self.programs.run("sbatch", &arguments)?;
        self.state().waiting_since.insert(folder.clone(), Instant::now());
        Record { job: record::job_id(&output)? }.write(&folder)
    }

    /// Whether a gang has a Slurm job. One that was about to be submitted when the control plane ended is looked for.
    fn is_submitted(&self, folder: &Path) -> Result<bool, LaunchError> {
        if Record::read(folder)?.is_some() {
            return Ok(true);
        }
        if !record::is_announced(folder) {
            return Ok(false);
        }
        let sight = self.look()?;
        match sight.job_of(folder, None) {
            Some(job) => Record { job: job.id }.write(folder).map(|()| true),
            None => Ok(false),
        }
    }

    /// What Slurm said of the job of a gang, if that is new enough to tell.
    fn seen(&self, folder: &Path) -> Result<Seen, LaunchError> {
        let record = Record::read(folder)?;
        let state = self.state();
        let sight = state.sight.as_ref().filter(|sight| sight.at.elapsed() <= SIGHT_AGE_MAX);
        let silent =
            || LaunchError::Unavailable { system: SLURM, message: "it has said nothing for a while".to_owned() };
        let sight = sight.ok_or_else(silent)?;
        let submitted_at = state.waiting_since.get(folder).copied();
        if submitted_at.is_some_and(|at| at >= sight.at) {
            return Ok(Seen::TooNew);
        }
        let job = sight.job_of(folder, record.as_ref().map(|record| record.job)).cloned();
        Ok(match job {
            Some(job) if job.stage != Stage::Over => Seen::Job(job),
            _ => Seen::Nothing,
        })
    }

    /// Asks Slurm to kill what is to be killed and still there.
    fn carry_out_kills(&self, sight: &Sight) -> Result<(), LaunchError> {
        let wanted: Vec<(PathBuf, Instant)> = {
            let mut state = self.state();
            state.kills.retain(|share, _| !has_ended(share) && sight.has_job_of_share(share));
            state.kills.iter().map(|(share, since)| (share.clone(), *since)).collect()
        };
        let mut ended = BTreeSet::new();
        for (share, since) in wanted {
            let folder = gang_folder(&share);
            let Some(job) = sight.job_of(&folder, Record::read(&folder)?.map(|record| record.job)) else { continue };
            let name = node_of(&share);
            let is_deaf = self.state().probes.verdict(&name) == Verdict::Unreachable;
            let is_waiting = matches!(job.stage, Stage::Pending | Stage::Configuring);
            let step = if is_deaf || is_waiting { None } else { self.step(job.id, &name)? };
            match step {
                Some(step) if since.elapsed() <= STEP_KILL_WAIT => self.cancel(&["--signal=KILL".to_owned(), step])?,
                _ if is_deaf && since.elapsed() <= PEERS_WAIT && !have_others_ended(&folder, &share) => {}
                _ if ended.insert(job.id) => self.end_job(job)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// Ends a job with all that is left of it. Its script is killed too: it may wait for a node that doesn't answer, and until
    /// Slurm gives it up, after KillWait, the job would keep its other nodes.
    fn end_job(&self, job: &SlurmJob) -> Result<(), LaunchError> {
        let id = job.id.to_string();
        if job.stage == Stage::Holding {
            self.cancel(&["--signal=KILL".to_owned(), "--full".to_owned(), id.clone()])?;
        }
        self.cancel(&[id])
    }

    fn cancel(&self, arguments: &[String]) -> Result<(), LaunchError> {
        match self.programs.run("scancel", arguments) {
            // What is over can't be cancelled.
            Ok(_) | Err(LaunchError::Refused { .. }) => Ok(()),
            Err(failure) => Err(failure),
        }
    }

    /// The id of the step of a job on a node.
    fn step(&self, job: u64, node: &str) -> Result<Option<String>, LaunchError> {
        let arguments = ["--steps", "--noheader", "--format=%i|%j"].map(str::to_owned);
        let of_job = [format!("--jobs={job}")];
        let output = match self.programs.run("squeue", &[arguments.as_slice(), &of_job].concat()) {
            // It has just ended.
            Err(LaunchError::Refused { .. }) => return Ok(None),
            output => output?,
        };
        let text = String::from_utf8_lossy(&output);
        let name = step_name(node);
        let mut steps = text.lines().filter_map(|line| line.trim().split_once('|'));
        Ok(steps.find(|(_, of)| *of == name).map(|(id, _)| id.to_owned()))
    }
}

/// What Slurm knows of a gang.
enum Seen {
    /// It was submitted after the last look.
    TooNew,
    Job(SlurmJob),
    /// It has no job, or no more.
    Nothing,
}

impl Launcher for SlurmLauncher {
    fn launch(&self, gang: &[SupervisorSpec]) -> Vec<Result<(), LaunchError>> {
        let Err(failure) = self.submit(gang) else { return gang.iter().map(|_| Ok(())).collect() };
        // All of the gang failed for one reason, which each is told in words.
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
        let (gang, node) = (gang_folder(folder), node_of(folder));
        let job = match self.seen(&gang)? {
            Seen::TooNew => None,
            Seen::Job(job) => Some(job),
            Seen::Nothing if has_ended(folder) || folder.join(IDENTITY_FILE).exists() => return Ok(Presence::Gone),
            Seen::Nothing => return Ok(Presence::Withdrawn),
        };
        let mut state = self.state();
        let waits = job.as_ref().is_none_or(|job| matches!(job.stage, Stage::Pending | Stage::Configuring));
        if waits {
            let since = state.waiting_since.entry(gang).or_insert_with(Instant::now).elapsed();
            let is_pending = job.as_ref().is_some_and(|job| job.stage == Stage::Pending);
            let why = job.map(|job| format!("in Slurm's queue: {}", job.reason)).unwrap_or_default();
            return Ok(Presence::Waiting { since, why, is_overdue: is_pending && since > self.options.pending_max });
        }
        let holds = job.is_some_and(|job| job.nodes.iter().any(|(name, _)| *name == node));
        if !holds || folder.join(FINAL_REPORT_FILE).exists() && has_ended(folder) {
            return Ok(Presence::Gone);
        }
        // A step without a last word may have ended alone or with its node, which then must not be used again.
        state.probes.ask(&node);
        Ok(match state.probes.verdict(&node) {
            Verdict::Unreachable => Presence::Unreachable,
            Verdict::Answers if has_ended(folder) => Presence::Gone,
            Verdict::Answers | Verdict::Unknown => Presence::Running,
        })
    }

    fn kill(&self, folder: &Path) -> Result<(), LaunchError> {
        let (gang, node) = (gang_folder(folder), node_of(folder));
        let is_there = match self.seen(&gang)? {
            Seen::TooNew => true,
            Seen::Job(job) if matches!(job.stage, Stage::Pending | Stage::Configuring) => true,
            Seen::Job(job) => !has_ended(folder) && job.nodes.iter().any(|(name, _)| *name == node),
            Seen::Nothing => false,
        };
        if !is_there {
            return Ok(());
        }
        self.state().kills.entry(folder.to_owned()).or_insert_with(Instant::now);
        Err(LaunchError::Leaving { what: format!("Slurm hasn't said yet that its job has left {node}") })
    }

    fn survey(&self) -> Result<Option<Vec<SurveyedNode>>, LaunchError> {
        let sight = self.look()?;
        let to_probe = self.state().probes.due();
        let answers = sight.probe(&to_probe);
        let nodes = {
            let mut state = self.state();
            state.probes.answered(answers, &sight);
            let nodes = sight.surveyed(&self.options, &state.probes);
            state.waiting_since.retain(|folder, at| *at >= sight.at || sight.job_of(folder, None).is_some());
            state.sight = Some(sight.clone());
            nodes
        };
        self.carry_out_kills(&sight)?;
        Ok(Some(nodes))
    }
}

/// Whether a share's step is over: all of its processes are gone, by Slurm.
fn has_ended(share: &Path) -> bool {
    share.join(STEP_END_FILE).exists()
}

/// Whether all other shares of a gang are over.
fn have_others_ended(gang: &Path, share: &Path) -> bool {
    let shares = std::fs::read_dir(gang).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut others = shares.filter(|path| path != share && path.is_dir());
    others.all(|other| has_ended(&other))
}

/// The node of a share's folder.
fn node_of(share: &Path) -> String {
    share.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// The GPUs that a list of generic resources has first: their kind, if they have a type, and how many; none if it has none.
#[must_use]
pub fn gpus(list: &str) -> Option<(Option<String>, u32)> {
    let first = gres::read(list).into_iter().next()?;
    Some((first.slurm_type.is_some().then(|| first.kind()), first.count))
}
