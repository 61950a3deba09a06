//! Why a job waits, as values.

use std::cmp::Reverse;
use std::fmt;

use gangline_base::{AcceleratorKind, Bytes, GangShape, JobId, JobSpec, NodeName, QueueName, SweepId, Timestamp};

use crate::claim::names;
use crate::engine::Engine;
use crate::line::QueueKey;
use crate::reasons::{Candidate, Reasons};
use crate::spares::SparePool;
use crate::{DomainFit, Refusal, Share};

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

impl Engine {
    /// Why a waiting job waits; none if it isn't waiting.
    #[must_use]
    pub fn explain(&self, now: Timestamp, id: JobId) -> Option<Explanation> {
        Some(self.explain_candidate(now, &Candidate::waiting(self.jobs.get(&id)?)?))
    }

    /// What keeps a waiting job from starting, without its place in line, which takes longer to count.
    #[must_use]
    pub fn blocker(&self, now: Timestamp, id: JobId) -> Option<Blocker> {
        self.blockers(now, &[id]).pop().map(|(_, blocker)| blocker)
    }

    /// What keeps each of these jobs from starting; those that don't wait are left out. What they have in common is worked
    /// out once.
    #[must_use]
    pub fn blockers(&self, now: Timestamp, jobs: &[JobId]) -> Vec<(JobId, Blocker)> {
        let mut reasons = Reasons::new(self, now);
        let waiting = jobs.iter().filter_map(|id| Some((*id, Candidate::waiting(self.jobs.get(id)?)?)));
        waiting.map(|(id, candidate)| (id, reasons.blocker_of(&candidate))).collect()
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
        let mut reasons = Reasons::new(self, now);
        let held = reasons.reservations_before(&candidate);
        let claims = self.claims_beside(candidate.key.job);
        let room = self.room_beside(now, &candidate.applicant(), &claims, held);
        let shares = room.map(|room| room.shares).unwrap_or_default();
        Ok(DryRun::WouldStart { shares })
    }

    fn explain_candidate(&self, now: Timestamp, candidate: &Candidate<'_>) -> Explanation {
        let mut reasons = Reasons::new(self, now);
        let blocker = reasons.blocker_of(candidate);
        let own_leaf = self.queues.leaf(&candidate.spec.queue);
        let leaves = self.leaves_in_order(now).into_iter().take_while(|leaf| *leaf != own_leaf);
        let in_other_leaves: usize = leaves.map(|leaf| self.queues.pending(leaf).len()).sum();
        let ahead = in_other_leaves + self.queues.pending(own_leaf).range(..candidate.key).count();
        let is_new = !self.queues.contains(&candidate.spec.queue, &candidate.key);
        let starts_by = match blocker {
            Blocker::NotEnoughFree { .. } if reasons.reservations_before(candidate).is_empty() => {
                self.reserve(now, candidate.key.job, &candidate.spec.gang, &[]).at
            }
            Blocker::Claimed { until, .. } => Some(until),
            _ => None,
        };
        Explanation { blocker, ahead, waiting: self.queues.waiting() + usize::from(is_new), starts_by }
    }
}
