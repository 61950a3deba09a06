//! Elasticity: jobs that may run on more or fewer nodes shrink rather than wait or die, and grow into idle
//! nodes.
//!
//! - If no other job waits for the same accelerators, a job starts as wide as there is room; otherwise on its
//!   minimum, or as wide as it last was. So a gang that has lost a node continues on the rest.
//! - A waiting gang that may preempt an elastic job may shrink it instead (`victims.rs`).
//! - A running job grows if no job waits for the idle nodes and its gain within [`GROWTH_HORIZON`] is
//!   [`GAIN_FACTOR`] times its restart's cost: the work since its last durable checkpoint, saving and
//!   loading, at its present speed. That factor, and [`SETTLED_AFTER`] between two checks, prevent
//!   oscillation. The best time is right after a checkpoint, so growth is considered then.
//!
//! A resize is a stop that saves first, with a claim to the nodes on which the job continues (`claim.rs`).
//! Charging a restart as lost work follows Sia (SOSP 2023); speeds come from the job's own curve, or are
//! measured (`pace.rs`), as Pollux's goodput (OSDI 2021).

use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::time::Duration;

use gangline_base::{GangShape, JobId, NodeId, Timestamp};

use crate::claim::{Claim, ClaimReason, ClaimRight};
use crate::cost::since_durable;
use crate::engine::Engine;
use crate::job::{Attempt, Job, nodes_max, stop_cost, width_of};
use crate::pass::StartLimits;
use crate::placement::{self, Room};
use crate::{Cluster, Decision, StopReason};

/// The least run time on the present nodes before a resize, and between two checks without a checkpoint.
const SETTLED_AFTER: Duration = Duration::from_mins(10);
/// How long currently idle nodes are expected to stay idle.
const GROWTH_HORIZON: Duration = Duration::from_hours(1);
/// The least ratio of a growth's gain to its cost.
const GAIN_FACTOR: u128 = 2;

/// Returns the fastest of these widths; the smallest of equally fast ones, so that useless nodes are left to
/// others.
fn fastest(widths: RangeInclusive<u32>, speed: &dyn Fn(u32) -> u32) -> Option<u32> {
    widths.rev().max_by_key(|width| speed(*width))
}

/// Returns a ratio in thousandths.
fn per_mille(of: u32, to: u32) -> u32 {
    u32::try_from(u64::from(of) * 1_000 / u64::from(to.max(1))).unwrap_or(u32::MAX)
}

impl Engine {
    /// Returns the widest room for a job, given room on its minimum number of nodes. `find` finds room for
    /// other widths.
    pub(crate) fn widened(&self, job: &Job, room: Room, find: &dyn Fn(&GangShape) -> Option<Room>) -> Room {
        if job.spec.elastic.is_none() {
            return room;
        }
        let (mut best, mut least, mut most) = (room, job.spec.gang.nodes.get(), self.width_wanted(job));
        while least < most {
            let middle = least + (most - least).div_ceil(2);
            let gang = NonZeroU32::new(middle).map(|nodes| job.spec.gang.of_nodes(nodes));
            match gang.and_then(|gang| find(&gang)) {
                Some(wider) => (best, least) = (wider, middle),
                None => most = middle - 1,
            }
        }
        best
    }

    /// Returns the most nodes on which a waiting job should start now.
    fn width_wanted(&self, job: &Job) -> u32 {
        let gang = &job.spec.gang;
        let wanted = match (&job.claim, self.is_waited_for_beside(job)) {
            (Some(claim), _) => u32::try_from(claim.nodes.len()).unwrap_or(u32::MAX),
            (None, true) => job.width.unwrap_or(gang.nodes.get()),
            (None, false) => nodes_max(&job.spec).get(),
        };
        wanted.min(self.width_allowed(job, 0)).clamp(gang.nodes.get(), nodes_max(&job.spec).get())
    }

    /// Returns the most nodes that its queues' limits allow a job, counting those it already holds.
    pub(crate) fn width_allowed(&self, job: &Job, held: u32) -> u32 {
        let gang = &job.spec.gang;
        let leaf = self.queues.leaf(&job.spec.queue);
        if self.leads_at_limit(leaf, gang).is_some() {
            return held;
        }
        let left = self.queues.left_of(leaf, &gang.accelerator);
        left.map_or(u32::MAX, |left| held.saturating_add(left / gang.accelerators_per_node.get()))
    }

    /// Reports whether another job that could run waits for the same kind of accelerator.
    pub(crate) fn is_waited_for_beside(&self, job: &Job) -> bool {
        let waits = |other: &Job| {
            other.id != job.id
                && other.spec.gang.flavour() == job.spec.gang.flavour()
                && self.may_start(self.now, self.queues.leaf(&other.spec.queue), other)
                && self.could_run(&other.spec)
        };
        self.waiting_jobs().any(waits)
    }

    /// Restarts a running job on more nodes if that pays off.
    pub(crate) fn grow(&mut self, now: Timestamp, id: JobId, decisions: &mut Vec<Decision>) {
        let Some(job) = self.jobs.get(&id) else { return };
        let (Some(_), Some(attempt)) = (&job.spec.elastic, job.attempt()) else { return };
        if attempt.stop.is_some() {
            return;
        }
        let settled_at = attempt.placed_at + SETTLED_AFTER;
        if now < settled_at {
            self.timers.insert((settled_at, id));
            return;
        }
        match self.growth(now, id) {
            Some(grown) => {
                for decision in grown {
                    self.evolve_decision(now, &decision);
                    decisions.push(decision);
                }
            }
            None => drop(self.timers.insert((now + SETTLED_AFTER, id))),
        }
    }

    fn growth(&mut self, now: Timestamp, id: JobId) -> Option<[Decision; 2]> {
        let job = self.jobs.get(&id)?;
        let (elastic, attempt) = (job.spec.elastic.as_ref()?, job.attempt()?);
        let from = width_of(attempt).get();
        let most = elastic.nodes_max.get().min(self.width_allowed(job, from));
        let speed = |nodes: u32| job.pace.speed_milli(job.spec.gang.nodes, elastic, nodes);
        let could_gain =
            from < most && attempt.is_running() && self.pays(now, job, attempt, fastest(from + 1..=most, &speed)?);
        if !could_gain || !self.has_idle_node(job) || self.is_waited_for_beside(job) {
            return None;
        }
        // Room that other jobs claim is excluded.
        let claims = self.claims_beside(id);
        let limits = self.limits(now, &job.applicant(), &claims, &[]);
        let nodes = wider(&mut self.cluster, job, attempt, &limits, most)?;
        let wide = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
        let to = fastest(from + 1..=wide, &speed)?;
        if !self.pays(now, job, attempt, to) {
            return None;
        }
        let nodes: Vec<NodeId> = if to == wide { nodes } else { wider(&mut self.cluster, job, attempt, &limits, to)? };
        let cost = stop_cost(now, job, attempt, &self.configuration.preemption.restart);
        let claim = Claim { nodes, victims: vec![job.id], until: now + job.spec.checkpoint.grace };
        let right = ClaimRight::Growth { from, to, speed_milli: per_mille(speed(to), speed(from)) };
        let reason = ClaimReason { right, cost, is_cheapest: true, alternatives: Vec::new() };
        let stop = Decision::Stop { job: job.id, attempt: attempt.number, reason: StopReason::Resized { to } };
        Some([Decision::Claim { job: job.id, claim, reason }, stop])
    }

    /// Reports whether running on `to` nodes gains enough over the horizon.
    fn pays(&self, now: Timestamp, job: &Job, attempt: &Attempt, to: u32) -> bool {
        let Some(elastic) = &job.spec.elastic else { return false };
        let speed = |nodes: u32| u128::from(job.pace.speed_milli(job.spec.gang.nodes, elastic, nodes));
        let limit = job.spec.time_limit.map(|limit| (attempt.allocated_at + limit).since(now));
        let horizon = limit.map_or(GROWTH_HORIZON, |left| left.min(GROWTH_HORIZON));
        let restart = self.configuration.preemption.restart;
        let lost = since_durable(now, attempt.placed_at, job.checkpoint_at) + restart.save + restart.restore;
        let from = width_of(attempt).get();
        let gained = speed(to).saturating_sub(speed(from)) * horizon.as_nanos();
        gained > GAIN_FACTOR * speed(from) * lost.as_nanos()
    }

    fn has_idle_node(&self, job: &Job) -> bool {
        self.cluster.topology().root().with_devices_for(&job.spec.gang) > 0
    }
}

/// Returns the nodes of the widest room, up to `most`, treating the job's own nodes as free, which they are
/// when it restarts.
fn wider(
    cluster: &mut Cluster,
    job: &Job,
    attempt: &Attempt,
    limits: &StartLimits<'_>,
    most: u32,
) -> Option<Vec<NodeId>> {
    let find = |cluster: &Cluster, nodes: u32| {
        let gang = job.spec.gang.of_nodes(NonZeroU32::new(nodes)?);
        placement::find_room(cluster, &gang, &|node| limits.usable(node))
    };
    let room = cluster.with_released(&attempt.shares, |cluster| {
        let (mut least, mut most, mut best) = (width_of(attempt).get(), most, None);
        while least < most {
            let middle = least + (most - least).div_ceil(2);
            match find(cluster, middle) {
                Some(room) => (best, least) = (Some(room), middle),
                None => most = middle - 1,
            }
        }
        best
    });
    room.map(|room| room.shares.iter().map(|share| share.node).collect())
}
