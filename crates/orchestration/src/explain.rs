//! Why a job is pending, as values.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use gangline_base::{
    AcceleratorKind, Bytes, Day, Dependency, GangShape, GpuSeconds, JobId, JobSpec, NodeName, QueueName, SweepId,
    Timestamp,
};

use crate::claim::names;
use crate::engine::Engine;
use crate::job::Job;
use crate::reasons::{Candidate, Reasons};
use crate::recovery::SparePool;
use crate::{DomainFit, Event, HourQuota, OverBudget, Refusal, Share};

/// The most dependencies named in one explanation.
const DEPENDENCIES_NAMED_MAX: usize = 16;

/// Why a job is pending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Explanation {
    /// What blocks it first.
    pub blocker: Blocker,
    /// The number of waiting jobs considered before it.
    pub ahead: usize,
    /// The number of waiting jobs, including this one.
    pub waiting: usize,
    /// The latest start time, derived from the time limits of running jobs and assuming that no job with a
    /// better place arrives. Unknown unless the job is the first to wait for its kind of accelerator and
    /// everything in its way has a time limit.
    pub starts_by: Option<Timestamp>,
    /// When it will be first in line whatever else arrives; none without ageing, or if it is held back.
    pub overdue: Option<Overdue>,
}

/// When a waiting job becomes overdue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overdue {
    /// From then on it leads all jobs that compete with it, but for those that have waited longer.
    pub at: Timestamp,
    /// How many of those wait now.
    pub behind: usize,
}

/// What keeps a job from starting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Blocker {
    /// A user holds it.
    Held,
    /// A budget of its queue or user is spent.
    OverBudget(OverBudget),
    /// It comes after jobs that haven't ended.
    After {
        /// These jobs, at most 16.
        dependencies: Vec<Dependency>,
        /// The number of further ones.
        more: usize,
    },
    /// It failed and pauses before its next attempt.
    BackingOff {
        /// When the pause ends.
        until: Timestamp,
    },
    /// Its queue, or an ancestor, may not use more accelerators of the kind.
    Quota {
        /// The queue at its limit.
        queue: QueueName,
        /// The kind of accelerator.
        kind: AcceleratorKind,
        /// How many the job requests.
        wanted: u32,
        /// How many the queue's jobs hold.
        held: u32,
        /// The queue's limit: quota plus borrowing limit.
        limit: u32,
    },
    /// Its queue, or an ancestor, has used the GPU-hours of a period; nothing of it starts before the next.
    GpuHours {
        /// The queue.
        queue: QueueName,
        /// What its jobs have used in the period.
        used: GpuSeconds,
        /// What they may use, and in which period.
        quota: HourQuota,
        /// When the next period begins.
        until: Timestamp,
    },
    /// Its sweep has reached its limit on jobs that hold devices at once.
    Parallel {
        /// The sweep.
        sweep: SweepId,
        /// How many of the sweep's jobs hold devices.
        holding: u32,
        /// The sweep's limit.
        max_parallel: u32,
    },
    /// There is room, but it is held for a job that is served earlier, which this job would delay.
    Behind {
        /// The other job.
        job: JobId,
        /// The other job's latest start time; unknown if something in its way has no time limit.
        starts_by: Option<Timestamp>,
        /// What blocks the other job.
        because: Box<Blocker>,
    },
    /// There is room, but on nodes that are reserved for others now or before this job would end.
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
    /// There is room, but on spare nodes, kept for jobs that lose a node.
    Spares {
        /// How many nodes are kept.
        kept: u32,
        /// Why they are kept.
        pool: SparePool,
    },
    /// Other jobs are saving to make room for it.
    Claimed {
        /// The victims.
        victims: Vec<JobId>,
        /// When the last victim will have left at the latest.
        until: Timestamp,
    },
    /// Other jobs hold the devices.
    NotEnoughFree {
        /// The requested gang.
        wanted: GangShape,
        /// Nodes that could take a share now.
        nodes_with_room: usize,
        /// Free accelerators of the kind on ready nodes; there may be enough, but on too few nodes.
        free_accelerators: u32,
        /// Jobs that hold accelerators of the kind on ready nodes, at most 16.
        holders: Vec<JobId>,
    },
    /// Enough nodes have room, but not close enough to each other.
    Topology {
        /// The requested gang.
        wanted: GangShape,
        /// The domain with room for the largest part of the gang.
        best: DomainFit,
        /// Nodes in any domain that could take a share now.
        nodes_with_room: usize,
    },
    /// Too few of the nodes that could hold the gang are ready.
    NodesUnavailable {
        /// The requested gang.
        wanted: GangShape,
        /// Ready nodes that could take a share if empty.
        ready: u32,
        /// Suitable nodes that are draining.
        draining: Vec<NodeName>,
        /// Suitable nodes that are lost.
        lost: Vec<NodeName>,
        /// Suitable nodes that are suspect because of their faults.
        suspect: Vec<NodeName>,
    },
    /// Nothing: it starts with the next decision.
    Nothing,
}

impl Blocker {
    /// Returns the blocker of a job that comes after these jobs; none if there are none.
    pub(crate) fn after(after: &BTreeSet<Dependency>) -> Option<Blocker> {
        let named: Vec<Dependency> = after.iter().take(DEPENDENCIES_NAMED_MAX).copied().collect();
        (!named.is_empty()).then(|| Blocker::After { more: after.len() - named.len(), dependencies: named })
    }
}

impl fmt::Display for Blocker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Blocker::Held => f.write_str("a user holds it; it may start once it is released"),
            Blocker::OverBudget(OverBudget { budget, limit, .. }) => {
                write!(
                    f,
                    "the budget \"{budget}\" of {limit} is spent; it may start in the next period, or once it is released"
                )
            }
            Blocker::After { dependencies, more } => waits_for_ends(f, dependencies, *more),
            Blocker::BackingOff { .. } => f.write_str("it ended without progress and pauses before its next attempt"),
            Blocker::Quota { queue, kind, wanted, held, limit } => {
                write!(f, "queue \"{queue}\" holds {held} of at most {limit} {kind}, and it wants {wanted}")
            }
            Blocker::GpuHours { queue, used, quota, until } => write!(
                f,
                "queue \"{queue}\" has used {} of its {} GPU-hours of this {}, and starts nothing before {} (UTC)",
                hours(*used),
                hours(quota.limit),
                quota.per.name(),
                day(*until)
            ),
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
                let flavour = &pool.flavour;
                write!(
                    f,
                    "there is room, but {kept} {flavour} node(s) are kept as spares ({pool}): only work of low priority may start there"
                )
            }
            Blocker::Claimed { victims, .. } => write!(f, "waits for {} to save and make room", names(victims)),
            Blocker::NotEnoughFree { wanted, nodes_with_room, free_accelerators, holders } => {
                not_enough(f, wanted, (*nodes_with_room, *free_accelerators), holders)
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

/// Formats device time in hours, rounded down to a tenth.
fn hours(time: GpuSeconds) -> String {
    let tenths = time.nanos() / 360_000_000_000;
    format!("{}.{}", tenths / 10, tenths % 10)
}

/// Returns the day on which a period begins.
fn day(begins: Timestamp) -> Day {
    let days = begins.unix_nanos() / 86_400_000_000_000;
    Day::from_days_since_epoch(i64::try_from(days).expect("a u64 of nanoseconds is 213,504 days"))
}

fn waits_for_ends(f: &mut fmt::Formatter<'_>, dependencies: &[Dependency], more: usize) -> fmt::Result {
    let named: Vec<String> = dependencies.iter().map(Dependency::to_string).collect();
    write!(f, "waits for {}", named.join(", "))?;
    if more > 0 { write!(f, ", and for {more} more job(s)") } else { Ok(()) }
}

/// Formats what a gang wants and what is free.
fn not_enough(
    f: &mut fmt::Formatter<'_>,
    wanted: &GangShape,
    (nodes_with_room, free_accelerators): (usize, u32),
    holders: &[JobId],
) -> fmt::Result {
    let kind = &wanted.accelerator;
    write!(f, "wants {} node(s){} with {kind}:{}", wanted.nodes, of_pool(wanted), wanted.accelerators_per_node)?;
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

/// Formats the pool, unless it is the default pool.
pub(crate) fn of_pool(wanted: &GangShape) -> String {
    if wanted.pool.is_default() { String::new() } else { format!(" of pool {}", wanted.pool) }
}

/// What would happen to a job submitted now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DryRun {
    /// It would start at once.
    WouldStart {
        /// The nodes and devices it would get.
        shares: Vec<Share>,
    },
    /// It would start as soon as the jobs that it preempts have saved and stopped.
    WouldPreempt(Explanation),
    /// It would wait.
    WouldWait(Explanation),
}

impl Engine {
    /// Explains why a job is pending; none if it isn't waiting.
    #[must_use]
    pub fn explain(&self, now: Timestamp, id: JobId) -> Option<Explanation> {
        Some(self.explain_candidate(now, &Candidate::waiting(self.jobs.get(&id)?)?))
    }

    /// Returns what keeps a waiting job from starting, without its position in the queue, which is slower to
    /// compute.
    #[must_use]
    pub fn blocker(&self, now: Timestamp, id: JobId) -> Option<Blocker> {
        self.blockers(now, &[id]).pop().map(|(_, blocker)| blocker)
    }

    /// Returns what keeps each of these jobs from starting, omitting jobs that don't wait. Shared results are
    /// computed once.
    #[must_use]
    pub fn blockers(&self, now: Timestamp, jobs: &[JobId]) -> Vec<(JobId, Blocker)> {
        let mut reasons = Reasons::new(self, now);
        let waiting = jobs.iter().filter_map(|id| Some((*id, Candidate::waiting(self.jobs.get(id)?)?)));
        waiting.map(|(id, candidate)| (id, reasons.blocker_of(&candidate))).collect()
    }

    /// Returns where a job would run if it were submitted now, or why it would wait.
    ///
    /// # Errors
    /// The [`Refusal`] that the submission would get.
    pub fn dry_run(&self, now: Timestamp, spec: &JobSpec) -> Result<DryRun, Refusal> {
        self.try_out(now, &Event::JobSubmitted(Arc::new(spec.clone())))
    }

    /// Submits to a copy of the engine and returns what the copy decides about the first job.
    pub(crate) fn try_out(&self, now: Timestamp, submission: &Event) -> Result<DryRun, Refusal> {
        let (mut copy, id) = (self.clone(), self.next_job_id());
        copy.apply(now, submission)?;
        if let Some(attempt) = copy.job(id).and_then(Job::attempt) {
            return Ok(DryRun::WouldStart { shares: attempt.shares.clone() });
        }
        let waiting = copy.waiting_count();
        let nothing = Explanation { blocker: Blocker::Nothing, ahead: 0, waiting, starts_by: None, overdue: None };
        let explanation = copy.explain(now, id).unwrap_or(nothing);
        Ok(match explanation.blocker {
            Blocker::Claimed { .. } => DryRun::WouldPreempt(explanation),
            _ => DryRun::WouldWait(explanation),
        })
    }

    fn explain_candidate(&self, now: Timestamp, candidate: &Candidate<'_>) -> Explanation {
        let mut reasons = Reasons::new(self, now);
        let blocker = reasons.blocker_of(candidate);
        let own_leaf = self.queues.leaf(&candidate.spec.queue);
        let leaves = self.leaves_in_order(now).into_iter().take_while(|leaf| *leaf != own_leaf);
        let in_other_leaves: usize = leaves.map(|leaf| self.queues.pending(leaf).len()).sum();
        let ahead = in_other_leaves + self.queues.pending(own_leaf).range(..candidate.key).count();
        let job = self.jobs.get(&candidate.key.job);
        let leading = job.filter(|job| self.leads(job));
        let is_new = !self.jobs.contains_key(&candidate.key.job);
        let starts_by = match blocker {
            _ if leading.is_some() => leading.and_then(|job| self.leader_starts_by(job)),
            Blocker::NotEnoughFree { .. } if reasons.reservations_before(candidate).is_empty() => {
                self.reserve(now, candidate.key.job, &candidate.spec.gang, &[]).at
            }
            Blocker::Claimed { until, .. } => Some(until),
            _ => None,
        };
        let overdue = job.and_then(|job| self.overdue_from(job));
        let ahead = if leading.is_some() { 0 } else { ahead };
        Explanation { blocker, ahead, waiting: self.waiting_count() + usize::from(is_new), starts_by, overdue }
    }
}
