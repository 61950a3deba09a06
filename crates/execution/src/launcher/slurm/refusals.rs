//! Nodes that Slurm refuses to gangs. A gang is placed on nodes that look free, but Slurm may know better: a reservation begins
//! before the gang would end, or a node is kept for others. A gang that waits for such nodes in vain is taken back, and these nodes
//! take no gang until something about them has changed, so that the next placement is another one. A gang that would wait
//! wherever it is placed, for a limit of its account for instance, stays in Slurm's queue and ages there.
//!
//! Slurm's reasons: squeue(1), "JOB REASON CODES"; <https://slurm.schedmd.com/job_reason_codes.html>.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::jobs::{SlurmJob, Stage};
use super::nodes::SlurmNode;
use super::pool::{self, Allocation};
use super::reservations::Reservation;
use super::snapshot::Snapshot;
use super::{LIMITS_AGE_MAX, SlurmLauncher, State};
use crate::launcher::{LaunchError, Openness};

/// A node that was refused is tried again after this time, even if nothing has changed; after twice as long each further time.
const TRY_AGAIN_AFTER: Duration = Duration::from_mins(5);
const TRY_AGAIN_AFTER_MAX: Duration = Duration::from_hours(1);
/// How old the list of reservations may be while a node is refused for one of them.
const RESERVATIONS_AGE_MAX: Duration = Duration::from_mins(1);
/// How reasons begin that hold wherever in the partition a gang is placed: limits of accounts, qualities of service and the
/// partition, holds, and what the job itself waits for.
const ANYWHERE: [&str; 13] = [
    "Account",
    "Assoc",
    "BeginTime",
    "Burst",
    "Cleaning",
    "Dead",
    "Dep",
    "Invalid",
    "Job",
    "Licenses",
    "Max",
    "Partition",
    "QOS",
];

/// What a reason is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum About {
    /// The nodes that the gang asked for.
    Nodes,
    /// The gang's turn among the jobs that wait.
    Turn,
    /// Neither: another placement would wait as well.
    Anywhere,
}

impl About {
    fn of(reason: &str) -> About {
        match reason {
            "Priority" => About::Turn,
            // Slurm's scheduler has not looked at the job yet.
            "" | "None" => About::Anywhere,
            _ if ANYWHERE.iter().any(|start| reason.starts_with(start)) => About::Anywhere,
            _ => About::Nodes,
        }
    }
}

/// Gangs that Slurm doesn't start, and nodes that it gives to no gang.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    /// Gangs that wait in vain and are to be taken back, by their folders.
    gangs: BTreeSet<PathBuf>,
    nodes: BTreeMap<String, Refusal>,
    /// None until they are first needed.
    reservations: Option<Reservations>,
}

/// Slurm's reservations, and when it said so.
type Reservations = (Instant, Vec<Reservation>);

/// Returns the reservation that a node is in, of those that are known.
fn reservation_of<'a>(known: &'a Option<Reservations>, node: &SlurmNode) -> Option<&'a Reservation> {
    let (_, all) = known.as_ref()?;
    all.iter().find(|reservation| reservation.nodes.contains(&node.name))
}

/// Why a node takes no gang: one has waited for it in vain.
#[derive(Clone, Debug)]
struct Refusal {
    why: String,
    /// The reservation that is the reason.
    reservation: Option<String>,
    /// The node's state when the gang was taken back.
    node: SlurmNode,
    at: Instant,
    times: u32,
}

impl Refusal {
    fn pause(&self) -> Duration {
        TRY_AGAIN_AFTER.saturating_mul(1 << self.times.saturating_sub(1).min(16)).min(TRY_AGAIN_AFTER_MAX)
    }
}

impl Refusals {
    /// Reports whether a gang is to be taken back.
    pub(super) fn has_gang(&self, folder: &Path) -> bool {
        self.gangs.contains(folder)
    }

    /// Returns why a node takes no gang now, if Slurm refused it to one and nothing has changed since then.
    pub(super) fn of(&self, node: &str, now: Instant) -> Option<String> {
        let refusal = self.nodes.get(node).filter(|refusal| now.duration_since(refusal.at) < refusal.pause())?;
        Some(format!("Slurm let a gang wait for it in vain: {}", refusal.why))
    }

    /// Forgets gangs that wait no more, and refusals of nodes about which something has changed.
    fn follow(&mut self, snapshot: &Snapshot) {
        self.gangs.retain(|folder| snapshot.job_of(folder, None).is_some_and(|job| job.stage == Stage::Pending));
        let is_there = |reservations: &[Reservation], name: &str| reservations.iter().any(|one| one.name == name);
        self.nodes.retain(|name, refusal| {
            let is_same = snapshot.node(name).is_some_and(|node| node.is_as_free_as(&refusal.node));
            let is_reserved = refusal.reservation.as_ref().zip(self.reservations.as_ref());
            is_same && is_reserved.is_none_or(|(name, (_, all))| is_there(all, name))
        });
    }

    /// Notes that a gang waits in vain for some of its nodes. If nothing that Slurm says of them explains it, all are to blame.
    fn note(&mut self, folder: &Path, job: &SlurmJob, wanted: &[&SlurmNode], now: Instant) {
        let is_unfit = |node: &&SlurmNode| node.openness() != Openness::Open || !node.has_room(job.gpus_per_node);
        let reservations = &self.reservations;
        let mut blamed: Vec<&SlurmNode> = wanted.iter().copied().filter(is_unfit).collect();
        if blamed.is_empty() && About::of(&job.reason) == About::Turn {
            return;
        }
        if blamed.is_empty() {
            blamed = wanted.iter().copied().filter(|node| reservation_of(reservations, node).is_some()).collect();
        }
        if blamed.is_empty() {
            blamed = wanted.to_vec();
        }
        for node in blamed {
            let reservation = reservation_of(reservations, node);
            let of = reservation.map(|one| format!(", reservation {} from {}", one.name, one.from)).unwrap_or_default();
            let why = format!("{}{of}", job.why());
            let times = self.nodes.get(&node.name).map_or(0, |before| before.times) + 1;
            let reservation = reservation.map(|one| one.name.clone());
            self.nodes.insert(node.name.clone(), Refusal { why, reservation, node: node.clone(), at: now, times });
        }
        self.gangs.insert(folder.to_owned());
    }
}

impl SlurmLauncher {
    /// Finds out which gangs wait in vain, and which nodes are to take no gang for now.
    pub(super) fn follow_refusals(&self, snapshot: &Snapshot) -> Result<(), LaunchError> {
        if self.options.allocation != Allocation::Job {
            return Ok(());
        }
        let late = self.late_gangs(snapshot);
        let mut arguments = self.options.all_jobs().flat_map(|(_, job)| &job.sbatch);
        let names_reservation = arguments.any(|word| word.starts_with("--reservation"));
        let mut state = self.state();
        let age_max = match state.refusals.nodes.values().any(|refusal| refusal.reservation.is_some()) {
            _ if !late.is_empty() => Some(Duration::ZERO),
            true => Some(RESERVATIONS_AGE_MAX),
            false => snapshot.nodes().any(SlurmNode::is_reserved).then_some(LIMITS_AGE_MAX),
        };
        let is_young = |age_max| state.refusals.reservations.as_ref().is_some_and(|(at, _)| at.elapsed() < age_max);
        if !names_reservation && age_max.is_some_and(|age_max| !is_young(age_max)) {
            drop(state);
            let reservations = match Reservation::read_all(&self.programs) {
                Err(LaunchError::Refused { message, .. }) => {
                    tracing::warn!(message, "Slurm doesn't say what is reserved");
                    Vec::new()
                }
                read => read?,
            };
            state = self.state();
            state.refusals.reservations = Some((Instant::now(), reservations));
        }
        state.refusals.follow(snapshot);
        for (folder, job) in late {
            let wanted: Vec<&SlurmNode> = job.required.iter().filter_map(|name| snapshot.node(name)).collect();
            state.refusals.note(&folder, job, &wanted, Instant::now());
        }
        Ok(())
    }

    /// Returns the gangs that have been pending for too long, for a reason that another placement may not have.
    fn late_gangs<'a>(&self, snapshot: &'a Snapshot) -> Vec<(PathBuf, &'a SlurmJob)> {
        let state = self.state();
        let waiting = state.waiting_since.iter().filter(|(_, since)| since.elapsed() > self.options.pending_max);
        let late = waiting.filter_map(|(folder, _)| {
            let job = snapshot.job_of(folder, None).filter(|job| job.stage == Stage::Pending)?;
            let is_new = !state.refusals.has_gang(folder);
            let may_help = About::of(&job.reason) != About::Anywhere && !job.required.is_empty();
            (is_new && may_help).then(|| (folder.clone(), job))
        });
        late.collect()
    }

    /// Returns why a node that is open by Slurm takes no gang for now.
    pub(super) fn refusal_of(&self, node: &SlurmNode, snapshot: &Snapshot, state: &State) -> Option<String> {
        if self.options.allocation != Allocation::Job {
            let holder = pool::holder(&self.options, snapshot, &node.name);
            let is_given_back = holder.is_some_and(|job| state.given_back.contains(&job.id));
            return is_given_back.then(|| "Gangline is giving it back to Slurm".to_owned());
        }
        let refusals = &state.refusals;
        let reservation = reservation_of(&refusals.reservations, node).filter(|_| node.is_reserved());
        let reserved = reservation.map(|one| format!("Slurm's reservation {} keeps it for others", one.name));
        reserved.or_else(|| refusals.of(&node.name, Instant::now()))
    }
}

#[cfg(test)]
mod tests {
    use super::super::nodes;
    use super::*;

    /// Output of 22.05.8 for four nodes.
    const NODES: &str = include_str!("../../../tests/fixtures/sinfo_22.05.json");

    fn waiting(reason: &str) -> SlurmJob {
        SlurmJob { reason: reason.to_owned(), gpus_per_node: 2, ..SlurmJob::example(7, Stage::Pending) }
    }

    fn nodes() -> Vec<SlurmNode> {
        nodes::read(NODES.as_bytes()).expect("it is understood").expect("it has nodes")
    }

    /// Refusals after a gang has waited for the first two nodes.
    fn after(reason: &str, reservations: Vec<Reservation>, change: impl Fn(&mut SlurmNode)) -> Refusals {
        let mut nodes = nodes();
        nodes.iter_mut().for_each(|node| (node.gpus_used, node.cpus_used) = (0, 0));
        change(&mut nodes[1]);
        let mut refusals = Refusals { reservations: Some((Instant::now(), reservations)), ..Refusals::default() };
        refusals.note(
            Path::new("/data/jobs/job-1/attempt-1"),
            &waiting(reason),
            &[&nodes[0], &nodes[1]],
            Instant::now(),
        );
        refusals
    }

    fn refused(refusals: &Refusals) -> Vec<&str> {
        refusals.nodes.keys().map(String::as_str).collect()
    }

    #[test]
    fn reasons_say_whether_another_placement_would_help() {
        let are = |reasons: &[&str], about: About| {
            reasons.iter().for_each(|reason| assert_eq!(About::of(reason), about, "{reason}"));
        };
        are(&["Resources", "ReqNodeNotAvail", "Reservation", "NodeDown", "SomethingNew"], About::Nodes);
        are(&["", "None", "AssocGrpGRES", "QOSMaxJobsPerUserLimit", "JobHeldAdmin", "PartitionDown"], About::Anywhere);
        are(&["Priority"], About::Turn);
    }

    #[test]
    fn the_nodes_that_explain_a_wait_are_refused_and_otherwise_all_of_them() {
        let maint = || {
            let (name, from) = ("maint".to_owned(), "2026-12-02T08:00:00".to_owned());
            vec![Reservation { name, from, nodes: vec!["n1".to_owned()] }]
        };
        assert_eq!(
            refused(&after("Resources", vec![], |node| node.cpus_used = node.cpus)),
            ["n2"],
            "it has no CPU left"
        );
        assert_eq!(refused(&after("Resources", vec![], |node| node.gpus_used = 3)), ["n2"], "it has too few GPUs");
        assert_eq!(refused(&after("Resources", vec![], |_| ())), ["n1", "n2"]);
        let reserved = after("ReqNodeNotAvail", maint(), |_| ());
        let why = "Slurm let a gang wait for it in vain: ReqNodeNotAvail, reservation maint from 2026-12-02T08:00:00";
        assert_eq!((refused(&reserved), reserved.of("n1", Instant::now()).as_deref()), (vec!["n1"], Some(why)));
        let turn = after("Priority", vec![], |_| ());
        assert!(refused(&turn).is_empty() && turn.gangs.is_empty(), "it stays in Slurm's queue");
        assert_eq!(refused(&after("Priority", vec![], |node| node.gpus_used = 4)), ["n2"], "somebody was quicker");
    }

    #[test]
    fn a_refusal_holds_longer_each_time_and_until_something_changes() {
        let mut refusals = after("Resources", vec![], |node| node.cpus_used = node.cpus);
        let (node, now) = (refusals.nodes["n2"].node.clone(), Instant::now());
        assert!(refusals.of("n2", now).is_some() && refusals.of("n1", now).is_none());
        assert!(refusals.of("n2", now + TRY_AGAIN_AFTER).is_none());
        refusals.note(Path::new("/data/jobs/job-1/attempt-2"), &waiting("Resources"), &[&node], now);
        assert!(
            refusals.of("n2", now + TRY_AGAIN_AFTER).is_some()
                && refusals.of("n2", now + 2 * TRY_AGAIN_AFTER).is_none()
        );
        let look = |nodes: Vec<SlurmNode>| Snapshot::example(nodes, vec![]);
        refusals.follow(&look(vec![node.clone()]));
        assert_eq!((refused(&refusals), refusals.gangs.len()), (vec!["n2"], 0), "no gang waits any more");
        refusals.follow(&look(vec![SlurmNode { cpus_used: 0, ..node }]));
        assert!(refused(&refusals).is_empty());
    }

    #[test]
    fn a_reservation_that_is_gone_refuses_nothing() {
        let (name, from) = ("maint".to_owned(), "2026-12-02T08:00:00".to_owned());
        let maint = Reservation { name, from, nodes: vec!["n1".to_owned()] };
        let mut refusals = after("ReqNodeNotAvail", vec![maint], |_| ());
        let look = Snapshot::example(vec![refusals.nodes["n1"].node.clone()], vec![]);
        refusals.follow(&look);
        assert_eq!(refused(&refusals), ["n1"]);
        refusals.reservations = Some((Instant::now(), vec![]));
        refusals.follow(&look);
        assert!(refused(&refusals).is_empty());
    }
}
