//! The recovery ladder: what a job does after a fault that its fault budget covers.
//!
//! 1. *Restart in place*: the gang keeps its devices, its allocation and its time limit, and no other job
//!    runs in between.
//! 2. *Swap*: it releases its devices and restarts at once, as wide as before, on other free nodes, spares
//!    first.
//! 3. *Shrink*: an elastic gang continues on the available nodes.
//! 4. *Requeue*: it waits for nodes, or for its pause to end.
//! 5. *Stop*: its fault budget is spent ([`Fate::FaultsExhausted`], [`Fate::NoProgress`]), or it would fail
//!    again in the same way ([`Fate::NotRetried`]): after a program error, too little memory, or a command
//!    that can't start, it is retried only if the attempt made progress, which means that it saved a new
//!    checkpoint (or, for a job that reports none, ran for long).
//!
//! Unless there is no other room, the smaller expected loss decides whether to keep the nodes (estimated, in device-seconds of the gang):
//!
//! ```text
//! loss  = devices x (once + P(it happens again there) x again)
//! once  = restore + work since the last durable checkpoint
//! again = once, or all the job has run if that fault would end it
//! ```
//!
//! plus [`MOVE`] for nodes that don't have the job's files yet. Free nodes decide among rungs 2 to 4
//! (`pass.rs`, `spares.rs`, `elasticity.rs`). Whether a fault recurs on the same nodes depends on its
//! category: [`odds`] has our estimates. Faulty hardware, about 78 % of the unexpected interruptions of Llama
//! 3's training (arXiv 2407.21783, table 5), stays with its node, and few nodes cause most faults (Kokolis et
//! al., HPCA 2025): each earlier fault attributed to a node (`health.rs`) adds [`GRADE_ODDS`]. A program
//! error recurs wherever the job runs.

use std::fmt;
use std::time::Duration;

use gangline_base::{AttemptNumber, Bytes, FaultCategory, GpuSeconds, JobId, NodeId, Timestamp};

use crate::cost::since_durable;
use crate::engine::Engine;
use crate::evolve::{faults_without_progress, has_advanced};
use crate::job::{Attempt, Job, gang_of, width_of};
use crate::placement::{Applicant, NodeStatus, RootFault, first_fault};
use crate::{Decision, Fate, FaultCause, Node, PlaceReason, RequeueReason, Share, StopReason, placement};

/// The additional cost of a start on nodes without the job's images, environments and datasets.
const MOVE: Duration = Duration::from_secs(10);
/// The least restart time, unless a longer one is configured ([`crate::RestartCosts::restore`]).
const RESTORE_MIN: Duration = Duration::from_secs(10);
/// What each fault attributed to a node adds to the odds of the next, in hundredths.
const GRADE_ODDS: u32 = 10;
/// A job that runs longer than this is assumed not to be broken from the start.
const LONG_RUN: Duration = Duration::from_mins(10);
/// The highest odds, in hundredths.
const ODDS_MAX: u32 = 95;

/// How a job continues after a fault, and the expected loss of each option (estimated).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remedy {
    /// Whether it keeps its nodes.
    pub rung: Rung,
    /// The expected loss if it keeps its nodes; none if it can't.
    pub in_place: Option<GpuSeconds>,
    /// The expected loss if it releases its nodes.
    pub elsewhere: GpuSeconds,
}

/// The nodes on which a gang continues after a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rung {
    /// It restarts on its present devices.
    InPlace,
    /// It continues elsewhere, whole or smaller, as soon as there is room.
    Elsewhere,
}

impl fmt::Display for Remedy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = |loss: GpuSeconds| loss.nanos() / 1_000_000_000;
        let elsewhere = seconds(self.elsewhere);
        match (self.rung, self.in_place) {
            (Rung::InPlace, in_place) => {
                let in_place = seconds(in_place.unwrap_or(GpuSeconds::ZERO));
                write!(f, "restarts in place (estimated loss {in_place} device-seconds, {elsewhere} elsewhere)")
            }
            (Rung::Elsewhere, Some(in_place)) => {
                let in_place = seconds(in_place);
                write!(f, "goes on elsewhere (estimated loss {elsewhere} device-seconds, {in_place} in place)")
            }
            (Rung::Elsewhere, None) => {
                write!(f, "goes on where there is room (estimated loss {elsewhere} device-seconds)")
            }
        }
    }
}

/// Returns the odds that a fault recurs, in hundredths: on the same nodes, and on others (estimated).
fn odds(fault: RootFault) -> (u32, u32) {
    match (fault.cause, fault.category) {
        (_, FaultCategory::Hardware) => (90, 5),
        (_, FaultCategory::UserCode | FaultCategory::CudaOom) => (90, 90),
        (_, FaultCategory::HostOom) => (60, 50),
        (_, FaultCategory::Numerical) => (50, 50),
        (_, FaultCategory::NcclNetwork) => (30, 15),
        (_, FaultCategory::DataPipeline) => (30, 30),
        (_, FaultCategory::Storage) => (30, 25),
        (_, FaultCategory::SchedulerInfra | FaultCategory::Preemption) => (20, 10),
        (FaultCause::NodeLost | FaultCause::SupervisorLost, _) => (60, 5),
        (FaultCause::Start | FaultCause::Setup(_), _) => (60, 30),
        (FaultCause::Rendezvous | FaultCause::Hang, _) => (30, 20),
        (FaultCause::Exit(_) | FaultCause::Signal(_) | FaultCause::NotFinite { .. }, FaultCategory::Unknown) => {
            (30, 30)
        }
    }
}

/// Faults in a row from the same checkpoint that end a job without a limit of its own, once it has saved one.
const SAME_CHECKPOINT_LIMIT: u32 = 3;

/// Reports whether a retry without progress would fail in the same way.
fn repeats(RootFault { cause, category }: RootFault) -> bool {
    // A shell's codes for a command that it can't execute, or can't find (POSIX.1-2024, 2.8.2).
    let cannot_start = matches!(cause, FaultCause::Exit(126 | 127) | FaultCause::Setup(126 | 127));
    cannot_start || matches!(category, FaultCategory::UserCode | FaultCategory::CudaOom | FaultCategory::HostOom)
}

/// Returns the most faults in a row without a newer checkpoint. The job file's default for a job without a checkpoint
/// folder is one that is never reached, since such a job may report no checkpoint. If it does report one, going on
/// from the same one again and again leads nowhere.
fn no_progress_limit(job: &Job) -> u32 {
    let recovery = job.spec.recovery;
    let is_unlimited = job.spec.checkpoint.path.is_none() && recovery.no_progress_limit == recovery.max_faults + 1;
    let limit =
        if is_unlimited && job.checkpoint.is_some() { SAME_CHECKPOINT_LIMIT } else { recovery.no_progress_limit };
    limit.max(1)
}

impl Engine {
    /// Decides what happens to a job whose attempt ended with this fault: it ends, or it is requeued,
    /// possibly only until it is placed on the same devices.
    pub(crate) fn recover(&self, now: Timestamp, job: &Job, attempt: &Attempt, fault: RootFault) -> Decision {
        if let Some(fate) = fate_of(now, job, attempt, fault) {
            return Decision::End { job: job.id, fate };
        }
        let pause = self.backoff(job);
        let remedy = self.remedy(now, job, attempt, fault);
        let (faults, max_faults) = (job.faults + 1, job.spec.recovery.max_faults);
        let RootFault { cause, category } = fault;
        let reason = RequeueReason::Fault { cause, category, faults, max_faults, remedy };
        Decision::Requeue { job: job.id, attempt: attempt.number, not_before: now + pause, reason }
    }

    /// Returns the placement of a job that keeps its devices after a fault: the same gang on the same
    /// devices. A node may have been lost since, if the control plane was away in between.
    pub(crate) fn place_again(&self, job: &Job) -> Option<Decision> {
        let kept = job.kept.as_ref()?;
        let has_room = |share: &Share| {
            let node = self.cluster.node(share.node).filter(|node| node.status == NodeStatus::Ready);
            node.is_some_and(|node| node.has_free(share))
        };
        kept.shares.iter().all(has_room).then(|| {
            let candidates = u32::try_from(kept.shares.len()).unwrap_or(u32::MAX);
            let kept_since = Some(kept.since);
            let reason = PlaceReason {
                waited: Duration::ZERO,
                backfills: None,
                candidates,
                closeness: None,
                kept_since,
                is_overdue: false,
                held_data: Bytes(0),
            };
            let attempt = AttemptNumber(job.attempts + 1);
            Decision::Place { job: job.id, attempt, shares: kept.shares.clone(), reason }
        })
    }

    fn remedy(&self, now: Timestamp, job: &Job, attempt: &Attempt, fault: RootFault) -> Remedy {
        let pause = self.backoff(job);
        let policy = self.configuration.preemption.restart;
        let lost = since_durable(now, attempt.placed_at, job.checkpoint_at);
        let once = policy.restore.max(RESTORE_MIN).saturating_add(lost);
        let again = if Self::is_last_life(job) { once.max(job.ran + now.since(attempt.placed_at)) } else { once };
        let devices = u32::try_from(attempt.devices()).unwrap_or(u32::MAX);
        let loss = |odds: u32, more: Duration| {
            let expected = once.saturating_add(again.saturating_mul(odds.min(ODDS_MAX)) / 100);
            GpuSeconds::of(devices, expected.saturating_add(more))
        };
        let (here, there) = odds(fault);
        let elsewhere = loss(there, MOVE.saturating_add(pause));
        let may_stay = pause.is_zero() && self.may_stay(now, job, attempt);
        let in_place = may_stay.then(|| loss(here + GRADE_ODDS * self.grade_at_fault(now, attempt), Duration::ZERO));
        let is_cheapest = in_place.is_some_and(|in_place| in_place <= elsewhere);
        Remedy { rung: if is_cheapest { Rung::InPlace } else { Rung::Elsewhere }, in_place, elsewhere }
    }

    /// Lets a job that [`Engine::recover`] sends elsewhere restart in place if there is no other room:
    /// releasing its nodes would only make it wait.
    pub(crate) fn stay_without_room(&mut self, now: Timestamp, decision: &mut Decision) {
        let Decision::Requeue { job: id, reason: RequeueReason::Fault { remedy, .. }, .. } = decision else { return };
        if remedy.in_place.is_none_or(|in_place| in_place <= remedy.elsewhere) {
            return;
        }
        let Some(job) = self.jobs.get(id) else { return };
        let failed = job.attempt().and_then(first_fault).map(|(node, _)| node);
        if !self.could_move(now, *id, job.is_recovering, failed) {
            remedy.rung = Rung::InPlace;
        }
    }

    /// Reports whether all its nodes can still run it: none is lost, draining, departing or reserved; its
    /// queues' limits still allow it; and its devices are not promised to another job.
    fn may_stay(&self, now: Timestamp, job: &Job, attempt: &Attempt) -> bool {
        let barred = self.barred_nodes(now, &job.applicant());
        let takes = |share: &Share| {
            let node = self.cluster.node(share.node);
            node.is_some_and(|node| node.keeps(&job.spec.gang, share))
                && !barred.contains(&share.node)
                && self.leaves_at(share.node).is_none()
        };
        let width = width_of(attempt).get();
        matches!(attempt.stop, None | Some(StopReason::PeerEnded))
            && attempt.shares.iter().all(takes)
            && self.width_allowed(job, width) >= width
            && has_time_left(now, job, attempt)
    }

    /// Reports whether a running job could move at once, replacing node `way` by a free node for which no job
    /// waits.
    pub(crate) fn could_move(&mut self, now: Timestamp, id: JobId, is_recovering: bool, way: Option<NodeId>) -> bool {
        let Some(job) = self.jobs.get(&id) else { return false };
        let Some(attempt) = job.attempt() else { return false };
        if self.is_waited_for_beside(job) {
            return false;
        }
        let claims = self.claims_beside(id);
        let applicant = Applicant { is_recovering, ..job.applicant() };
        let limits = self.limits(now, &applicant, &claims, &[]);
        let usable = |node: &Node| if Some(node.id) == way { 0 } else { limits.usable(node) };
        let gang = gang_of(&job.spec, attempt);
        self.cluster.with_released(&attempt.shares, |cluster| placement::has_room(cluster, &gang, &usable))
    }

    /// Returns the faults attributed to the node where the failure began.
    fn grade_at_fault(&self, now: Timestamp, attempt: &Attempt) -> u32 {
        let node = first_fault(attempt).and_then(|(node, _)| self.cluster.node(node));
        let policy = self.cluster.health_policy();
        node.zip(policy).map_or(0, |(node, policy)| node.condition.health.grade(now, policy))
    }

    /// Reports whether the next fault would end the job.
    fn is_last_life(job: &Job) -> bool {
        let policy = job.spec.recovery;
        job.faults + 2 > policy.max_faults || faults_without_progress(job) + 1 >= no_progress_limit(job)
    }

    /// Returns no pause after the first fault without progress, then 1, 2, 4, ... seconds.
    fn backoff(&self, job: &Job) -> Duration {
        match faults_without_progress(job) {
            0 | 1 => Duration::ZERO,
            n => self.doubled(n - 2),
        }
    }
}

/// Returns the fate of a job after this fault, unless its fault budget covers the fault.
fn fate_of(now: Timestamp, job: &Job, attempt: &Attempt, fault: RootFault) -> Option<Fate> {
    let RootFault { cause, category } = fault;
    let faults = job.faults + 1;
    let in_a_row = faults_without_progress(job);
    if faults > job.spec.recovery.max_faults {
        Some(Fate::FaultsExhausted { cause, faults })
    } else if in_a_row >= no_progress_limit(job) {
        Some(Fate::NoProgress { cause, faults: in_a_row })
    } else if repeats(fault) && !got_further(now, job, attempt) {
        Some(Fate::NotRetried { cause, category })
    } else {
        None
    }
}

/// Reports whether an attempt made more progress than the one before. A job that never reports checkpoints is
/// assumed to have done so if it ran for long, since a program that is broken from the start fails early.
fn got_further(now: Timestamp, job: &Job, attempt: &Attempt) -> bool {
    let ran_long = now.since(attempt.placed_at) >= LONG_RUN;
    has_advanced(job) || job.checkpoint.is_none() && ran_long
}

/// Reports whether its time limit leaves more time than starting and saving take; otherwise a new allocation
/// with a new limit is better.
fn has_time_left(now: Timestamp, job: &Job, attempt: &Attempt) -> bool {
    let is_over = |limit: Duration| attempt.allocated_at + limit <= now + RESTORE_MIN + job.spec.checkpoint.grace;
    !job.spec.time_limit.is_some_and(is_over)
}
