//! Nodes that Gangline asks for in Slurm's queue: for each of the gangs that wait first, a job that holds as many whole nodes as the
//! gang needs. The job names no nodes and stays in the queue for as long as the gang waits, so it ages there as anybody's
//! does. Once it runs, its nodes are open to gangs, which run inside it as steps ([`super::pool`]).
//!
//! The jobs look after themselves while no control plane is there: they end once no gang runs in them.
//!
//! Such a job has the comment `DATA/pool/queue/GANG`; the control plane keeps no list of them. Sources: sbatch(1).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use super::SlurmLauncher;
use super::jobs::{SlurmJob, Stage};
use super::nodes::SlurmNode;
use super::pool::{self, HOLD_AGAIN_AFTER, Holding};
use super::script::{STEP_PREFIX, quoted};
use super::snapshot::Snapshot;
use crate::launcher::{LaunchError, WantedGang};

/// How long nodes on which nothing runs are kept: a gang that restarts, or the next in line, takes them without waiting.
const IDLE_MAX: Duration = Duration::from_secs(30);
/// After a request that came to nothing, the next one for the same gang waits twice as long each time, up to this.
const ASK_AGAIN_MAX: Duration = Duration::from_mins(5);
/// A gang that still waits so long after its nodes were allocated has lost them to another one.
const TAKEN_AFTER: Duration = Duration::from_secs(20);
/// A step that was started less than this ago may be missing in what Slurm said.
const STEP_LAG: Duration = Duration::from_secs(10);

/// How often such a job looks whether a control plane is there, and how old its last sign may be.
const LOOK_EVERY: Duration = Duration::from_mins(1);
const SIGN_AGE_MINUTES: u32 = 10;
/// The file below the folder of requests whose time is the last sign of a control plane.
const SIGN_FILE: &str = "control-plane";
/// The file below the folder of requests whose time is when the last of the jobs began. Looking at it costs Slurm nothing.
const BEGUN_FILE: &str = "begun";

/// What is remembered of the jobs that hold nodes.
#[derive(Debug, Default)]
pub(super) struct Demand {
    /// The gangs that wait for nodes, first in line first; none until the control plane has said so: after a restart nothing is
    /// withdrawn before that.
    wanted: Option<Vec<WantedGang>>,
    /// Since when each job holds its nodes, as far as was seen.
    held_since: BTreeMap<u64, Instant>,
    /// Since when nothing runs in each of these jobs.
    idle_since: BTreeMap<u64, Instant>,
    /// When the sign of this control plane was last written.
    signed_at: Option<Instant>,
    /// When the last of these jobs began, as far as is known.
    begun_at: Option<SystemTime>,
    /// How many requests for each gang came to nothing in a row: Slurm refused them, or gave nodes that the gang couldn't use.
    in_vain: BTreeMap<String, u32>,
    /// Why Slurm refused the last request, if it did.
    pub(super) refusal: Option<String>,
}

impl Demand {
    /// Replaces the gangs that wait. Returns whether there is a new one among them.
    pub(super) fn replace(&mut self, gangs: Vec<WantedGang>) -> bool {
        let is_known = |gang: &WantedGang| self.wanted.iter().flatten().any(|known| known.gang == gang.gang);
        let has_new = !gangs.iter().all(is_known);
        self.in_vain.retain(|gang, _| gangs.iter().any(|wanted| wanted.gang == *gang));
        self.wanted = Some(gangs);
        has_new
    }

    /// Takes when the last of the jobs began. Returns whether that is another one than before.
    pub(super) fn has_begun(&mut self, at: Option<SystemTime>) -> bool {
        let has_begun = at.is_some() && at != self.begun_at;
        self.begun_at = at;
        has_begun
    }

    /// Counts a request that came to nothing.
    fn was_in_vain(&mut self, gang: &str) {
        let count = self.in_vain.entry(gang.to_owned()).or_default();
        *count = count.saturating_add(1);
    }

    /// Returns how long after a request for a gang the next one may follow.
    fn ask_again_after(&self, gang: &str) -> Duration {
        let doubled = self.in_vain.get(gang).map_or(0, |count| (*count).min(16));
        HOLD_AGAIN_AFTER.saturating_mul(1 << doubled).min(ASK_AGAIN_MAX)
    }

    /// Updates since when jobs hold nodes and are idle, and returns those that have been idle for too long.
    fn idle(&mut self, snapshot: &Snapshot, jobs: &[&SlurmJob]) -> Vec<u64> {
        let holding = || jobs.iter().filter(|job| job.stage == Stage::Holding);
        self.held_since.retain(|id, _| holding().any(|job| job.id == *id));
        let is_idle = |job: &SlurmJob| !pool::has_gangs(snapshot, job);
        self.idle_since.retain(|id, _| holding().any(|job| job.id == *id && is_idle(job)));
        for job in holding() {
            self.held_since.entry(job.id).or_insert(snapshot.at);
            if is_idle(job) {
                self.idle_since.entry(job.id).or_insert(snapshot.at);
            }
        }
        let idle = self.idle_since.iter().filter(|(_, since)| since.elapsed() > IDLE_MAX);
        idle.map(|(id, _)| *id).collect()
    }

    /// Reports whether nodes are on their way to a gang: requested, or allocated so lately that it may not have been placed yet.
    fn is_served(&self, job: &SlurmJob) -> bool {
        let is_fresh = || self.held_since.get(&job.id).is_none_or(|since| since.elapsed() < TAKEN_AFTER);
        job.is_waiting() || job.stage == Stage::Holding && is_fresh()
    }
}

/// Returns the script of a job that holds nodes. It says that it has begun. While no control plane gives a sign, the job ends once no
/// gang runs in it; if Slurm doesn't say what runs, it stays.
fn script(requests: &Path, look_every: Duration) -> String {
    let file = |name: &str| quoted(&requests.join(name).to_string_lossy());
    format!(
        "#!/bin/bash\n# Written by Gangline: holds nodes for gangs until it is cancelled, or no control plane is there and no gang runs.\n\
         touch {}\nwhile sleep {}; do\n  [ -n \"$(find {} -mmin -{SIGN_AGE_MINUTES} 2>/dev/null)\" ] && continue\n  \
         steps=$(squeue --noheader --steps --jobs=\"$SLURM_JOB_ID\" --format=%j) || continue\n  \
         grep -q '^{STEP_PREFIX}' <<< \"$steps\" || exit 0\ndone\n",
        file(BEGUN_FILE),
        look_every.as_secs_f64(),
        file(SIGN_FILE),
    )
}

/// Returns the folder of the requests below a data folder; it has their script and the control plane's sign.
fn requests(data: &Path) -> PathBuf {
    data.join("pool/queue")
}

/// Returns when the last of the jobs that hold nodes began, if one has.
pub(super) fn begun_at(data: &Path) -> Option<SystemTime> {
    std::fs::metadata(requests(data).join(BEGUN_FILE)).and_then(|file| file.modified()).ok()
}

/// Returns the comment of the jobs that hold nodes for a gang.
fn comment(data: &Path, gang: &str) -> PathBuf {
    requests(data).join(gang)
}

impl SlurmLauncher {
    /// Asks for the nodes of waiting gangs, withdraws requests of gangs that wait no more, and gives back nodes that are idle.
    pub(super) fn follow_demand(&self, snapshot: &Snapshot) -> Result<(), LaunchError> {
        self.give_sign();
        let jobs: Vec<&SlurmJob> = snapshot.live_jobs().filter(|job| pool::is_holder(&self.options, job)).collect();
        let mut state = self.state();
        let is_starting = state.waiting_since.values().any(|at| at.elapsed() < STEP_LAG);
        let idle = state.demand.idle(snapshot, &jobs);
        let Some(wanted) = state.demand.wanted.clone() else { return Ok(()) };
        drop(state);
        let gang_of = |job: &SlurmJob| {
            wanted.iter().find(|gang| Path::new(&job.comment) == comment(&self.options.folder, &gang.gang))
        };
        for job in &jobs {
            let (gang, is_unused) = (gang_of(job), idle.contains(&job.id) && !is_starting);
            if let Some(gang) = gang.filter(|_| is_unused) {
                self.state().demand.was_in_vain(&gang.gang);
            }
            if is_unused || job.is_waiting() && gang.is_none() {
                self.end_job(job)?;
            }
        }
        for gang in &wanted {
            let folder = comment(&self.options.folder, &gang.gang);
            let mut state = self.state();
            let is_served = jobs.iter().any(|job| Path::new(&job.comment) == folder && state.demand.is_served(job));
            let (asked_at, pause) = (state.held_at.get(&gang.gang).copied(), state.demand.ask_again_after(&gang.gang));
            if is_served || asked_at.is_some_and(|at| at >= snapshot.at || at.elapsed() < pause) {
                continue;
            }
            state.held_at.insert(gang.gang.clone(), Instant::now());
            state.held_at.retain(|_, at| at.elapsed() <= ASK_AGAIN_MAX);
            state.pace.changed();
            drop(state);
            let asked = self.ask(snapshot, gang);
            let refusal = asked.err().map(|failure| gangline_base::with_causes(&failure));
            let mut state = self.state();
            if let Some(failure) = &refusal {
                tracing::warn!(gang = gang.gang, failure, "Slurm takes no request for a gang's nodes");
                state.demand.was_in_vain(&gang.gang);
            }
            state.demand.refusal = refusal;
        }
        Ok(())
    }

    /// Writes the sign that this control plane is there. Without it jobs stay for as long as gangs run in them.
    fn give_sign(&self) {
        let mut state = self.state();
        if state.demand.signed_at.is_some_and(|at| at.elapsed() < LOOK_EVERY) {
            return;
        }
        state.demand.signed_at = Some(Instant::now());
        drop(state);
        let folder = requests(&self.options.folder);
        let file = folder.join(SIGN_FILE);
        if let Err(error) = std::fs::create_dir_all(&folder).and_then(|()| std::fs::write(&file, "")) {
            tracing::warn!(file = %file.display(), %error, "the sign for jobs that hold nodes can't be written");
        }
    }

    /// Submits a job that holds a gang's nodes once it runs.
    fn ask(&self, snapshot: &Snapshot, gang: &WantedGang) -> Result<(), LaunchError> {
        let fits = |node: &&SlurmNode| {
            let (kind, count) = node.accelerators();
            kind == gang.accelerator && count >= gang.accelerators_per_node
        };
        let smallest = snapshot.nodes().filter(fits).min_by_key(|node| node.accelerators().1);
        let Some(node) = smallest else {
            let message = format!("no node has {} of {}", gang.accelerators_per_node, gang.accelerator);
            return Err(LaunchError::Refused { system: super::SLURM, message });
        };
        let script = script(&requests(&self.options.folder), LOOK_EVERY);
        self.submit_holder(&Holding {
            name: "gangline-queue",
            comment: comment(&self.options.folder, &gang.gang),
            script: &script,
            node,
            is_this_node: false,
            count: gang.nodes,
            time_limit: gang.time_limit,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_that_were_just_allocated_or_asked_for_are_not_asked_for_again() {
        let (now, mut demand) = (Instant::now(), Demand::default());
        assert!(
            demand.is_served(&SlurmJob::example(1, Stage::Pending))
                && demand.is_served(&SlurmJob::example(1, Stage::Configuring))
        );
        assert!(!demand.is_served(&SlurmJob::example(1, Stage::Completing)), "it is ending");
        assert!(demand.is_served(&SlurmJob::example(1, Stage::Holding)), "seen for the first time");
        demand.held_since.insert(1, now);
        assert!(demand.is_served(&SlurmJob::example(1, Stage::Holding)));
        if let Some(long_ago) = now.checked_sub(TAKEN_AFTER) {
            demand.held_since.insert(1, long_ago);
            assert!(!demand.is_served(&SlurmJob::example(1, Stage::Holding)), "another gang has them");
        }
    }

    fn gang(name: &str) -> WantedGang {
        WantedGang {
            gang: name.to_owned(),
            nodes: 1,
            accelerator: "H100".to_owned(),
            accelerators_per_node: 8,
            time_limit: None,
        }
    }

    #[test]
    fn a_new_gang_and_a_job_that_begins_are_told_once() {
        let mut demand = Demand::default();
        assert!(!demand.replace(Vec::new()));
        assert!(demand.replace(vec![gang("job-1")]) && !demand.replace(vec![gang("job-1")]));
        assert!(demand.replace(vec![gang("job-1"), gang("job-2")]) && !demand.replace(vec![gang("job-2")]));
        let at = SystemTime::UNIX_EPOCH;
        let later = at + Duration::from_secs(1);
        assert_eq!([None, Some(at), Some(at), Some(later)].map(|at| demand.has_begun(at)), [false, true, false, true]);
    }

    #[test]
    fn requests_that_come_to_nothing_are_repeated_ever_more_seldom() {
        let mut demand = Demand::default();
        demand.replace(vec![gang("job-1"), gang("job-2")]);
        assert_eq!(demand.ask_again_after("job-1"), HOLD_AGAIN_AFTER);
        for times in [2, 4, 8, 16] {
            demand.was_in_vain("job-1");
            assert_eq!(demand.ask_again_after("job-1"), HOLD_AGAIN_AFTER * times);
        }
        (0..100).for_each(|_| demand.was_in_vain("job-1"));
        assert_eq!(demand.ask_again_after("job-1"), ASK_AGAIN_MAX);
        assert_eq!(demand.ask_again_after("job-2"), HOLD_AGAIN_AFTER);
        demand.replace(vec![gang("job-2")]);
        assert_eq!(demand.ask_again_after("job-1"), HOLD_AGAIN_AFTER, "it waited no more in between");
    }

    /// Runs the script with a `squeue` that answers this; returns whether it ends by itself within these seconds.
    fn ends_within(seconds: &str, sign_age: &str, squeue: &str) -> bool {
        let folder = tempfile::tempdir().unwrap();
        let requests = folder.path().join("it's there");
        std::fs::create_dir(&requests).unwrap();
        let (program, sign, held) =
            (folder.path().join("squeue"), requests.join(SIGN_FILE), folder.path().join("script"));
        std::fs::write(&program, format!("#!/bin/bash\n{squeue}\n")).unwrap();
        std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        std::fs::write(&held, script(&requests, Duration::from_millis(50))).unwrap();
        let touched = std::process::Command::new("touch").args(["-d", sign_age]).arg(&sign).status().unwrap();
        assert!(touched.success());
        let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
        let mut command = std::process::Command::new("timeout");
        command.arg(seconds).arg("/bin/bash").arg(&held).env("PATH", path).env("SLURM_JOB_ID", "41");
        let ended = command.status().unwrap().success();
        assert!(requests.join(BEGUN_FILE).exists(), "it says that it has begun");
        ended
    }

    #[test]
    fn a_job_without_a_control_plane_ends_once_no_gang_runs_in_it() {
        assert!(ends_within("60", "1 hour ago", "echo batch"), "nothing of a gang runs");
        assert!(!ends_within("0.5", "1 hour ago", "echo batch; echo gangline-job-1-attempt-1-n1"), "a gang runs");
        assert!(!ends_within("0.5", "1 hour ago", "exit 1"), "Slurm doesn't say");
        assert!(!ends_within("0.5", "now", "echo batch"), "a control plane is there");
    }
}
