//! Why a job waits, as values.

use std::cmp::Reverse;
use std::fmt;

use gangline_base::{AcceleratorKind, Bytes, GangShape, JobId, JobSpec, NodeName, QueueName, SweepId, Timestamp};

use crate::advance::AdvanceReservation;
use crate::backfill::Reservation;
use crate::claim::names;
use crate::engine::Engine;
use crate::job::{Job, JobState};
use crate::line::QueueKey;
use crate::pass::reserves;
use crate::queue::OverLimit;
use crate::spares::{Applicant, SparePool};
use crate::standing::NodeStatus;
use crate::{DomainFit, Node, Refusal, Share, placement};

/// Holders named in one explanation.
const HOLDERS_NAMED_MAX: usize = 16;

/// Why a waiting job waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// The first thing in its way.
    pub blocker: Blocker,
    /// Waiting jobs that are considered before it.
    pub ahead: usize,
    /// Waiting jobs in all, itself included.
    pub waiting: usize,
    /// When it starts at the latest, by the time limits of what runs and if nothing with a better place comes; unknown
    /// unless it is the first that waits for its kind of accelerator and all in its way has a time limit.
    pub starts_by: Option<Timestamp>,
}

/// What keeps a job from starting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Blocker {
    /// It failed and pauses before its next attempt.
    BackingOff {
        /// Until then.
        until: Timestamp,
    },
    /// Its queue, or one above, may have no more accelerators of the kind.
    Quota {
        /// That queue.
        queue: QueueName,
        /// The kind of accelerator.
        kind: AcceleratorKind,
        /// How many the job wants.
        wanted: u32,
        /// How many the queue's jobs hold.
        held: u32,
        /// How many they may: quota and borrowing together.
        limit: u32,
    },
    /// As many jobs of its sweep hold devices as may at once.
    Parallel {
        /// The sweep.
        sweep: SweepId,
        /// How many of its jobs hold devices.
        holding: u32,
        /// How many may.
        max_parallel: u32,
    },
    /// There is room, but it is held for a job with a better place in line, which this one would delay.
    Behind {
        /// That job.
        job: JobId,
        /// When that one starts at the latest; unknown if what is in its way has no time limit.
        starts_by: Option<Timestamp>,
        /// What keeps that one.
        because: Box<Blocker>,
    },
    /// There is room, but on nodes that an administrator has reserved for others, now or before this job would be over.
    Reserved {
        /// The reservation.
        reservation: String,
        /// When it begins.
        from: Timestamp,
        /// When it ends.
        until: Timestamp,
        /// Whether it has begun.
        is_open: bool,
    },
    /// There is room, but on nodes that are kept for jobs that lose one.
    Spares {
        /// How many.
        kept: u32,
        /// Why.
        pool: SparePool,
    },
    /// Other jobs are saving to make room for it.
    Claimed {
        /// Those.
        victims: Vec<JobId>,
        /// When they are gone at the latest.
        until: Timestamp,
    },
    /// Other jobs hold the devices.
    NotEnoughFree {
        /// What it wants.
        wanted: GangShape,
        /// Nodes that could take a share now.
        nodes_with_room: usize,
        /// Free accelerators of the kind on ready nodes; enough of them may still be on too few nodes.
        free_accelerators: u32,
        /// Who holds accelerators of the kind on ready nodes, at most 16 jobs.
        holders: Vec<JobId>,
    },
    /// Enough nodes have room, but not close enough to each other.
    Topology {
        /// What it wants.
        wanted: GangShape,
        /// The domain that has room for the largest part of it.
        best: DomainFit,
        /// Nodes anywhere that could take a share now.
        nodes_with_room: usize,
    },
    /// Too few nodes that could hold it are ready.
    NodesUnavailable {
        /// What it wants.
        wanted: GangShape,
        /// Ready nodes that could take a share if empty.
        ready: u32,
        /// Nodes that could, but are draining.
        draining: Vec<NodeName>,
        /// Nodes that could, but are lost.
        lost: Vec<NodeName>,
        /// Nodes that could, but have had too many faults of their own.
        suspect: Vec<NodeName>,
    },
    /// Nothing: it starts with the next decision.
    Nothing,
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Blocker::BackingOff { .. } => f.write_str("it ended without progress and pauses before its next attempt"),
            Blocker::Quota { queue, kind, wanted, held, limit } => {
                write!(f, "queue \"{queue}\" holds {held} of at most {limit} {kind}, and it wants {wanted}")
            }
            Blocker::Parallel { sweep, holding, max_parallel } => {
                write!(f, "{holding} job(s) of {sweep} run, and at most {max_parallel} may at once (max_parallel)")
            }
            Blocker::Behind { job, because, .. } => {
                write!(f, "there is room, but it would delay {job}, which is before it in line and {because}")
            }
            Blocker::Reserved { reservation, is_open: true, .. } => {
                write!(f, "there is room, but the nodes are in reservation \"{reservation}\" for others until it ends")
            }
            Blocker::Reserved { reservation, is_open: false, .. } => write!(
                f,
                "there is room, but it might run into reservation \"{reservation}\": set a time_limit that ends before it begins"
            ),
            Blocker::Spares { kept, pool } => {
                let lane = &pool.lane;
                write!(
                    f,
                    "there is room, but {kept} {lane} node(s) are kept as spares ({pool}): only work of low priority may start there"
                )
            }
            Blocker::Claimed { victims, .. } => write!(f, "waits for {} to save and make room", names(victims)),
            Blocker::NotEnoughFree { wanted, nodes_with_room, free_accelerators, holders } => {
                let kind = &wanted.accelerator;
                write!(
                    f,
                    "wants {} node(s){} with {kind}:{}",
                    wanted.nodes,
                    of_pool(wanted),
                    wanted.accelerators_per_node
                )?;
                if wanted.cpus_per_node > 0 {
                    write!(f, ", {} cpus", wanted.cpus_per_node)?;
                }
                if wanted.memory_per_node > Bytes(0) {
                    write!(f, ", {}", wanted.memory_per_node)?;
                }
                f.write_str("; ")?;
                write!(f, "{nodes_with_room} node(s) have room, {free_accelerators} {kind} free")?;
                if !holders.is_empty() {
                    let names: Vec<String> = holders.iter().map(JobId::to_string).collect();
                    write!(f, "; held by {}", names.join(", "))?;
                }
                Ok(())
            }
            Blocker::Topology { wanted, best, nodes_with_room } => write!(
                f,
                "wants {} node(s){} close to each other; {nodes_with_room} node(s) have room, but {best}",
                wanted.nodes,
                of_pool(wanted)
            ),
            Blocker::NodesUnavailable { wanted, ready, draining, lost, suspect } => {
                let pool = of_pool(wanted);
                write!(f, "wants {} node(s){pool}, only {ready} that could hold it are ready", wanted.nodes)?;
                for (names, state) in [(draining, "draining"), (lost, "lost"), (suspect, "suspect")] {
                    if !names.is_empty() {
                        let names: Vec<&str> = names.iter().map(NodeName::as_str).collect();
                        write!(f, "; {state}: {}", names.join(", "))?;
                    }
                }
                Ok(())
            }
            Blocker::Nothing => f.write_str("nothing is in its way"),
        }
    }
}

/// The pool, where it has to be said.
pub(crate) fn of_pool(wanted: &GangShape) -> String {
    if wanted.pool.is_default() { String::new() } else { format!(" of pool {}", wanted.pool) }
}

/// What would become of a job if it were submitted now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DryRun {
    /// It would start at once, here.
    WouldStart {
        /// The nodes and devices.
        shares: Vec<Share>,
    },
    /// It would wait.
    WouldWait(Explanation),
}

/// A job that waits, or would.
struct Candidate<'a> {
    spec: &'a JobSpec,
    is_recovering: bool,
    key: QueueKey,
    not_before: Timestamp,
    sweep: Option<SweepId>,
}

impl<'a> Candidate<'a> {
    fn applicant(&self) -> Applicant<'a> {
        Applicant { spec: self.spec, is_recovering: self.is_recovering }
    }
}

impl Engine {
    /// Why a waiting job waits; none if it isn't waiting.
    #[must_use]
    pub fn explain(&self, now: Timestamp, id: JobId) -> Option<Explanation> {
        Some(self.explain_candidate(now, &candidate(self.jobs.get(&id)?)?))
    }

    /// What keeps a waiting job from starting, without its place in line, which takes longer to count.
    #[must_use]
    pub fn blocker(&self, now: Timestamp, id: JobId) -> Option<Blocker> {
        Some(self.blocker_of(now, &candidate(self.jobs.get(&id)?)?))
    }

    /// Where a job would run if it were submitted now, or why it would wait.
    ///
    /// # Errors
    /// The [`Refusal`] that submitting it would meet.
    pub fn dry_run(&self, now: Timestamp, spec: &JobSpec) -> Result<DryRun, Refusal> {
        self.admit_job(spec)?;
        let (turn, job) = (self.turn_of(now, spec, self.estimates.expect(spec)), self.next_job_id());
        let key = QueueKey { priority: Reverse(spec.priority), turn, job };
        let candidate = Candidate { spec, is_recovering: false, key, not_before: now, sweep: None };
        let explanation = self.explain_candidate(now, &candidate);
        if explanation.blocker != Blocker::Nothing {
            return Ok(DryRun::WouldWait(explanation));
        }
        let held = self.reservations_before(now, &candidate);
        let claims = self.claims_beside(candidate.key.job);
        let room = self.room_beside(now, &candidate.applicant(), &claims, &held);
        let shares = room.map(|room| room.shares).unwrap_or_default();
        Ok(DryRun::WouldStart { shares })
    }

    fn explain_candidate(&self, now: Timestamp, candidate: &Candidate<'_>) -> Explanation {
        let blocker = self.blocker_of(now, candidate);
        let own_leaf = self.queues.leaf(&candidate.spec.queue);
        let leaves = self.leaves_in_order(now).into_iter().take_while(|leaf| *leaf != own_leaf);
        let in_other_leaves: usize = leaves.map(|leaf| self.queues.pending(leaf).len()).sum();
        let ahead = in_other_leaves + self.queues.pending(own_leaf).range(..candidate.key).count();
        let is_new = !self.queues.contains(&candidate.spec.queue, &candidate.key);
        let starts_by = match blocker {
            Blocker::NotEnoughFree { .. } if self.reservations_before(now, candidate).is_empty() => {
                self.reserve(now, candidate.key.job, &candidate.spec.gang, &[]).at
            }
            Blocker::Claimed { until, .. } => Some(until),
            _ => None,
        };
        Explanation { blocker, ahead, waiting: self.queues.waiting() + usize::from(is_new), starts_by }
    }

    /// The reservations that the pass would have made when it came to this job.
    fn reservations_before(&self, now: Timestamp, candidate: &Candidate<'_>) -> Vec<Reservation> {
        let own_leaf = self.queues.leaf(&candidate.spec.queue);
        let lane = candidate.spec.gang.lane();
        let leaves = self.leaves_in_order(now);
        let until = leaves.iter().position(|leaf| *leaf == own_leaf).map_or(leaves.len(), |own| own + 1);
        let mut held = Vec::new();
        for leaf in &leaves[..until] {
            let is_before = |key: &&QueueKey| *leaf != own_leaf || **key < candidate.key;
            for key in self.queues.pending(*leaf).iter().take_while(is_before) {
                let Some(job) = self.jobs.get(&key.job) else { continue };
                let gang = &job.spec.gang;
                let competes = gang.lane() == lane && reserves(held.len(), gang);
                if competes && self.may_start(now, *leaf, job) && self.could_run(&job.spec) {
                    held.push(self.reserve(now, job.id, gang, &held));
                }
            }
        }
        held
    }

    fn blocker_of(&self, now: Timestamp, candidate: &Candidate<'_>) -> Blocker {
        let gang = &candidate.spec.gang;
        if candidate.not_before > now {
            return Blocker::BackingOff { until: candidate.not_before };
        }
        let leaf = self.queues.leaf(&candidate.spec.queue);
        if let Some(OverLimit { queue, held, limit }) = self.queues.over_limit(leaf, gang) {
            return Blocker::Quota { queue, kind: gang.accelerator.clone(), wanted: gang.devices(), held, limit };
        }
        if let Some(full) = self.sweeps.full(candidate.sweep) {
            return full;
        }
        if !placement::has_room(&self.cluster, gang, &Node::free_count) {
            return self.jobs.get(&candidate.key.job).map_or_else(|| self.lack(gang), |job| self.lack_of(job));
        }
        let applicant = candidate.applicant();
        if let Some(first) = self.barring(now, candidate.spec).first()
            && self.room_beside(now, &applicant, &[], &[]).is_none()
        {
            let AdvanceReservation { name, from, until, .. } = (*first).clone();
            return Blocker::Reserved { reservation: name, from, until, is_open: first.is_open(now) };
        }
        let spares = self.spares_kept_from(now, &applicant);
        if !spares.is_empty() && self.room_beside(now, &applicant, &[], &[]).is_none() {
            let kept = u32::try_from(spares.len()).unwrap_or(u32::MAX);
            return Blocker::Spares { kept, pool: self.spare_pool(now, &gang.lane()) };
        }
        let claims = self.claims_beside(candidate.key.job);
        let held = self.reservations_before(now, candidate);
        if self.room_beside(now, &applicant, &claims, &held).is_some() {
            return Blocker::Nothing;
        }
        let is_in_the_way =
            |held: &&Reservation| self.room_beside(now, &applicant, &claims, std::slice::from_ref(held)).is_none();
        held.iter().find(is_in_the_way).or(held.first()).or(claims.first()).map_or(Blocker::Nothing, |held| {
            let first = self.jobs.get(&held.job);
            let because = Box::new(first.map_or(Blocker::Nothing, |first| self.lack_of(first)));
            Blocker::Behind { job: held.job, starts_by: held.at, because }
        })
    }

    /// What a waiting job that is first in line lacks.
    fn lack_of(&self, job: &Job) -> Blocker {
        match self.live_claim(job) {
            Some(claim) => Blocker::Claimed { victims: claim.victims.clone(), until: claim.until },
            None => self.lack(&job.spec.gang),
        }
    }

    /// What a gang lacks that there is no room for.
    fn lack(&self, gang: &GangShape) -> Blocker {
        let ready = self.cluster.could_hold(gang, &[NodeStatus::Ready]);
        if ready < gang.nodes.get() {
            let names = |status| {
                let nodes = self.cluster.nodes().filter(move |node| node.status == status);
                nodes.filter(|n| n.could_hold_share_of(gang)).map(|n| n.spec.name.clone()).collect()
            };
            let (draining, lost) = (names(NodeStatus::Draining), names(NodeStatus::Lost));
            let suspect = names(NodeStatus::Suspect);
            return Blocker::NodesUnavailable { wanted: gang.clone(), ready, draining, lost, suspect };
        }
        let competes = |node: &Node| node.status == NodeStatus::Ready && node.spec.capacity.is_for(gang);
        let holds_one = |job: &&Job| {
            let shares = job.attempt().map(|attempt| attempt.shares.as_slice()).unwrap_or_default();
            shares.iter().any(|share| self.cluster.node(share.node).is_some_and(competes))
        };
        let nodes_with_room = self.cluster.with_room_for(gang).count();
        if gang.topology.constrains() && nodes_with_room >= usize::try_from(gang.nodes.get()).unwrap_or(usize::MAX) {
            let best = placement::most_in_one(&self.cluster, gang, &|domain| domain.with_devices_for(gang)).into();
            return Blocker::Topology { wanted: gang.clone(), best, nodes_with_room };
        }
        Blocker::NotEnoughFree {
            wanted: gang.clone(),
            nodes_with_room,
            free_accelerators: self.cluster.nodes().filter(|node| competes(node)).map(Node::free_count).sum(),
            holders: self.jobs.values().filter(holds_one).map(|job| job.id).take(HOLDERS_NAMED_MAX).collect(),
        }
    }
}

fn candidate(job: &Job) -> Option<Candidate<'_>> {
    let JobState::Queued { not_before, .. } = job.state else { return None };
    let is_recovering = job.is_recovering;
    Some(Candidate { spec: &job.spec, is_recovering, key: job.key(), not_before, sweep: job.sweep })
}
