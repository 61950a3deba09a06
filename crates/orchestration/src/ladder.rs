//! The recovery ladder: what a job does after a fault that its budgets cover.
//!
//! 1. *Restart in place*: the gang keeps its devices, its allocation and its time limit, and nobody comes between.
//! 2. *Swap*: it lets go, and goes on at once as wide as before on other nodes that are free for it, spares first.
//! 3. *Shrink*: an elastic gang goes on with the nodes there are.
//! 4. *Requeue*: it waits for nodes, or for its pause to pass.
//! 5. *Stop*: its budgets are spent ([`Fate::FaultsExhausted`], [`Fate::NoProgress`]), or what failed fails again in the same way
//!    ([`Fate::NotRetried`]): an error of the program, or too little memory, is tried again only by an attempt that had saved
//!    something new (or, of a job that reports no checkpoints, ran for long): that one got further than the one before.
//!
//! Between keeping the nodes and letting go of them the expected loss decides (estimated, in device-seconds of the gang):
//!
//! ```text
//! loss = devices x (once + P(it happens again there) x again)
//! once = restore + work since the last durable checkpoint       again = once, or all the job has run if that fault would end it
//! ```
//!
//! with [`MOVE`] on top for nodes that have nothing of the job yet. Which of the rungs 2 to 4 follows from what is free
//! (`pass.rs`, `spares.rs`, `elasticity.rs`). Whether a fault strikes again on the same nodes depends on its kind: [`odds`] holds
//! our estimates. Faulty hardware, about 78 % of the unexpected interruptions of Llama 3's training (arXiv 2407.21783, table 5),
//! stays with its node, and few nodes cause most faults (Kokolis et al., HPCA 2025): each earlier fault that the blame ledger
//! holds against a node (`health.rs`) adds [`GRADE_ODDS`]. An error of the program strikes wherever it runs.

use std::fmt;
use std::time::Duration;

use gangline_base::{AttemptNumber, FaultCategory, GpuSeconds, NodeId, Timestamp};

use crate::elasticity::width_of;
use crate::engine::Engine;
use crate::evolve::{faults_without_progress, has_advanced};
use crate::health::{RootFault, first_fault};
use crate::job::{Attempt, Job};
use crate::preemption::cost::since_durable;
use crate::spares::Applicant;
use crate::standing::NodeStatus;
use crate::{Decision, Fate, FaultCause, Node, PlaceReason, RequeueReason, Share, StopReason, placement};

/// What a start on nodes that have nothing of the job yet costs on top: images, environments and data sets aren't there.
const MOVE: Duration = Duration::from_secs(10);
/// The least that a restart takes, if nobody has said more ([`crate::preemption::RestartCosts::restore`]).
const RESTORE_MIN: Duration = Duration::from_secs(10);
/// What each fault that is held against a node adds to the odds of the next, in hundredths.
const GRADE_ODDS: u32 = 10;
/// What fails for good from the start does so sooner than this.
const LONG_RUN: Duration = Duration::from_mins(10);
/// Nothing is surer than this.
const ODDS_MAX: u32 = 95;

/// How a job goes on after a fault, and what was expected of either way (estimated).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remedy {
    /// Whether it keeps its nodes.
    pub rung: Rung,
    /// The expected loss if it keeps them; none if it can't.
    pub in_place: Option<GpuSeconds>,
    /// The expected loss if it lets go of them.
    pub elsewhere: GpuSeconds,
}

/// Whether a gang keeps its devices after a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rung {
    /// It restarts where it is.
    InPlace,
    /// It goes on elsewhere, whole or smaller, as soon as there is room.
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

/// How likely a fault strikes again, in hundredths: on the same nodes, and on others (estimated).
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
        (FaultCause::Exit(_) | FaultCause::Signal(_) | FaultCause::NotFinite, FaultCategory::Unknown) => (30, 30),
    }
}

/// Whether trying again without having got further would end in the same way.
fn repeats(category: FaultCategory) -> bool {
    matches!(category, FaultCategory::UserCode | FaultCategory::CudaOom | FaultCategory::HostOom)
}

impl Engine {
    /// What becomes of a job whose attempt ended with this fault: its end, or that it waits again, if only until it is placed where it was.
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

    /// The start of a job that keeps its devices after a fault: the same gang on the same devices. A node may have gone since, if the
    /// control plane was away in between.
    pub(crate) fn place_again(&self, job: &Job) -> Option<Decision> {
        let kept = job.kept.as_ref()?;
        let has_room = |share: &Share| {
            let node = self.cluster.node(share.node).filter(|node| node.status == NodeStatus::Ready);
            node.is_some_and(|node| node.has_free(share))
        };
        kept.shares.iter().all(has_room).then(|| {
            let candidates = u32::try_from(kept.shares.len()).unwrap_or(u32::MAX);
            let kept_since = Some(kept.since);
            let reason =
                PlaceReason { waited: Duration::ZERO, backfills: None, candidates, closeness: None, kept_since };
            let attempt = AttemptNumber(job.attempts + 1);
            Decision::Place { job: job.id, attempt, shares: kept.shares.clone(), reason }
        })
    }

    fn remedy(&self, now: Timestamp, job: &Job, attempt: &Attempt, fault: RootFault) -> Remedy {
        let pause = self.backoff(job);
        let policy = self.queues.configuration().preemption.restart;
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
        let failed = first_fault(attempt).map(|(node, _)| node);
        // Where there is no other room, letting go only makes it wait.
        let is_cheapest = in_place.is_some_and(|in_place| {
            in_place <= elsewhere || !self.could_move(now, (job, &job.applicant()), attempt, failed)
        });
        Remedy { rung: if is_cheapest { Rung::InPlace } else { Rung::Elsewhere }, in_place, elsewhere }
    }

    /// Whether all its nodes still take it: none has gone, drains, is about to go or is reserved; its queues' limits are as they
    /// were; and nobody was promised what it holds.
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

    /// Whether it could go on at once with other nodes for the one that is in the `way`: nodes that are free, and nobody waits for.
    pub(crate) fn could_move(
        &self,
        now: Timestamp,
        (job, applicant): (&Job, &Applicant<'_>),
        attempt: &Attempt,
        way: Option<NodeId>,
    ) -> bool {
        if self.is_waited_for_beside(job) {
            return false;
        }
        let mut cluster = self.cluster.clone();
        attempt.shares.iter().for_each(|share| cluster.release(share));
        let claims = self.claims_beside(job.id);
        let beside = self.beside(now, applicant, &claims, &[]);
        let usable = |node: &Node| if Some(node.id) == way { 0 } else { beside.usable(node) };
        placement::has_room(&cluster, &job.spec.gang.of_nodes(width_of(attempt)), &usable)
    }

    /// Faults that are held against the node where it began.
    fn grade_at_fault(&self, now: Timestamp, attempt: &Attempt) -> u32 {
        let node = first_fault(attempt).and_then(|(node, _)| self.cluster.node(node));
        let policy = self.cluster.health_policy();
        node.zip(policy).map_or(0, |(node, policy)| node.standing.health.grade(now, policy))
    }

    /// Whether the next fault would end it.
    fn is_last_life(job: &Job) -> bool {
        let policy = job.spec.recovery;
        job.faults + 2 > policy.max_faults || faults_without_progress(job) + 1 >= policy.no_progress_limit.max(1)
    }

    /// At once after the first fault without progress, then 1, 2, 4, ... seconds.
    fn backoff(&self, job: &Job) -> Duration {
        match faults_without_progress(job) {
            0 | 1 => Duration::ZERO,
            n => self.doubled(n - 2),
        }
    }
}

/// The end of a job by this fault, unless its budgets cover it.
fn fate_of(now: Timestamp, job: &Job, attempt: &Attempt, fault: RootFault) -> Option<Fate> {
    let RootFault { cause, category } = fault;
    let faults = job.faults + 1;
    let in_a_row = faults_without_progress(job);
    if faults > job.spec.recovery.max_faults {
        Some(Fate::FaultsExhausted { cause, faults })
    } else if in_a_row >= job.spec.recovery.no_progress_limit.max(1) {
        Some(Fate::NoProgress { cause, faults: in_a_row })
    } else if repeats(category) && !got_further(now, job, attempt) {
        Some(Fate::NotRetried { cause, category })
    } else {
        None
    }
}

/// Whether an attempt has done more than the one before. Of a job that has never reported a checkpoint nobody knows: it is
/// taken to have if it ran for long, since what is wrong from the start shows soon.
fn got_further(now: Timestamp, job: &Job, attempt: &Attempt) -> bool {
    let ran_long = now.since(attempt.placed_at) >= LONG_RUN;
    has_advanced(job) || job.checkpoint.is_none() && ran_long
}

/// Whether its time limit leaves time for more than to start and to save: else it is better off with a new one.
fn has_time_left(now: Timestamp, job: &Job, attempt: &Attempt) -> bool {
    let is_over = |limit: Duration| attempt.allocated_at + limit <= now + RESTORE_MIN + job.spec.checkpoint.grace;
    !job.spec.time_limit.is_some_and(is_over)
}
