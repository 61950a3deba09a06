//! Elasticity: jobs that may run on more or fewer nodes shrink rather than wait or die, and grow into what idles.
//!
//! - A job starts as wide as there is room where nobody else waits for the same accelerators; else on its least nodes, or
//!   as wide as it last was. A gang that has lost a node so goes on with the rest.
//! - A waiting gang that may stop an elastic job may shrink it instead (`victims.rs`).
//! - A running job grows when nobody waits for what idles, and what it gains within [`GROWTH_HORIZON`] is
//!   [`GAIN_FACTOR`] times what its restart loses: the work since its last durable checkpoint, saving and loading, at its
//!   present speed. That factor, and [`SETTLED_AFTER`] between two looks, keep it from swinging. The best moment is right
//!   after a checkpoint, so it is looked at then.
//!
//! A resize is a stop that saves first, with a claim to the nodes that the job goes on with (`claim.rs`). Charging a
//! restart as lost work follows Sia (SOSP 2023); speeds come from the job's own curve, or are
//! measured (`pace.rs`), as Pollux's goodput (OSDI 2021).

use std::num::NonZeroU32;
use std::ops::RangeInclusive;
use std::time::Duration;

use gangline_base::{Elastic, GangShape, JobId, JobSpec, NodeId, Timestamp};

use crate::claim::{Claim, ClaimReason, ClaimRight};
use crate::engine::Engine;
use crate::job::{Attempt, Job};
use crate::placement::{self, Room};
use crate::preemption::cost::since_durable;
use crate::victims::stop_cost;
use crate::{Decision, StopReason};

/// A job isn't resized before it has run for so long on its present nodes, nor looked at more often without a checkpoint.
const SETTLED_AFTER: Duration = Duration::from_mins(10);
/// What idles now is expected to idle for so long.
const GROWTH_HORIZON: Duration = Duration::from_hours(1);
/// How many times its cost a growth has to gain.
const GAIN_FACTOR: u128 = 2;

/// The most nodes a job may have.
pub(crate) fn nodes_max(spec: &JobSpec) -> NonZeroU32 {
    spec.elastic.as_ref().map_or(spec.gang.nodes, |elastic| elastic.nodes_max)
}

/// The gang of an attempt: on as many nodes as it has shares.
pub(crate) fn gang_of(spec: &JobSpec, attempt: &Attempt) -> GangShape {
    spec.gang.of_nodes(width_of(attempt))
}

/// An attempt's nodes.
pub(crate) fn width_of(attempt: &Attempt) -> NonZeroU32 {
    let nodes = u32::try_from(attempt.shares.len()).ok().and_then(NonZeroU32::new);
    nodes.expect("an attempt has from 1 to 2^32 shares")
}

/// Of these widths the fastest; of those equally fast the least: what brings nothing is left to others.
fn fastest(widths: RangeInclusive<u32>, speed: &dyn Fn(u32) -> u32) -> Option<u32> {
    widths.rev().max_by_key(|width| speed(*width))
}

/// A ratio in thousandths.
fn per_mille(of: u32, to: u32) -> u32 {
    u32::try_from(u64::from(of) * 1_000 / u64::from(to.max(1))).unwrap_or(u32::MAX)
}

impl Engine {
    /// The widest room for a job, given that it has room on its least nodes. `find` looks for room of other widths.
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

    /// The most nodes a waiting job should start on now.
    fn width_wanted(&self, job: &Job) -> u32 {
        let gang = &job.spec.gang;
        let wanted = match (&job.claim, self.is_waited_for_beside(job)) {
            (Some(claim), _) => u32::try_from(claim.nodes.len()).unwrap_or(u32::MAX),
            (None, true) => job.width.unwrap_or(gang.nodes.get()),
            (None, false) => nodes_max(&job.spec).get(),
        };
        wanted.min(self.width_allowed(job, 0)).clamp(gang.nodes.get(), nodes_max(&job.spec).get())
    }

    /// The most nodes its queues' limits allow a job, beside those it holds already.
    pub(crate) fn width_allowed(&self, job: &Job, held: u32) -> u32 {
        let gang = &job.spec.gang;
        let left = self.queues.left_of(self.queues.leaf(&job.spec.queue), &gang.accelerator);
        left.map_or(u32::MAX, |left| held.saturating_add(left / gang.accelerators_per_node.get()))
    }

    /// Whether another job waits for the same kind of accelerator and could run.
    pub(crate) fn is_waited_for_beside(&self, job: &Job) -> bool {
        let waits = |other: &Job| {
            other.id != job.id
                && other.spec.gang.lane() == job.spec.gang.lane()
                && self.may_start(self.now, self.queues.leaf(&other.spec.queue), other)
                && self.could_run(&other.spec)
        };
        self.waiting_jobs().any(waits)
    }

    /// Has a running job restart on more nodes if that pays.
    pub(crate) fn grow(&mut self, now: Timestamp, id: JobId, decisions: &mut Vec<Decision>) {
        let Some(job) = self.jobs.get(&id) else { return };
        let (Some(elastic), Some(attempt)) = (&job.spec.elastic, job.attempt()) else { return };
        if attempt.stop.is_some() {
            return;
        }
        let settled_at = attempt.placed_at + SETTLED_AFTER;
        if now < settled_at {
            self.timers.insert((settled_at, id));
            return;
        }
        match self.growth(now, job, elastic, attempt) {
            Some(grown) => {
                for decision in grown {
                    self.evolve_decision(now, &decision);
                    decisions.push(decision);
                }
            }
            None => drop(self.timers.insert((now + SETTLED_AFTER, id))),
        }
    }

    fn growth(&self, now: Timestamp, job: &Job, elastic: &Elastic, attempt: &Attempt) -> Option<[Decision; 2]> {
        let from = width_of(attempt).get();
        let most = elastic.nodes_max.get().min(self.width_allowed(job, from));
        let speed = |nodes: u32| job.pace.speed_milli(job.spec.gang.nodes, elastic, nodes);
        let could_gain =
            from < most && attempt.is_running() && self.pays(now, job, attempt, fastest(from + 1..=most, &speed)?);
        if !could_gain || !self.has_idle_node(job) || self.is_waited_for_beside(job) {
            return None;
        }
        let nodes = self.wider(now, job, attempt, most)?;
        let wide = u32::try_from(nodes.len()).unwrap_or(u32::MAX);
        let to = fastest(from + 1..=wide, &speed)?;
        if !self.pays(now, job, attempt, to) {
            return None;
        }
        let nodes: Vec<NodeId> = if to == wide { nodes } else { self.wider(now, job, attempt, to)? };
        let cost = stop_cost(now, job, attempt, &self.queues.configuration().preemption.restart);
        let claim = Claim { nodes, victims: vec![job.id], until: now + job.spec.checkpoint.grace };
        let right = ClaimRight::Growth { from, to, speed_milli: per_mille(speed(to), speed(from)) };
        let reason = ClaimReason { right, cost, is_cheapest: true, alternatives: Vec::new() };
        let stop = Decision::Stop { job: job.id, attempt: attempt.number, reason: StopReason::Resized { to } };
        Some([Decision::Claim { job: job.id, claim, reason }, stop])
    }

    /// Whether running on `to` nodes gains enough over the horizon.
    fn pays(&self, now: Timestamp, job: &Job, attempt: &Attempt, to: u32) -> bool {
        let Some(elastic) = &job.spec.elastic else { return false };
        let speed = |nodes: u32| u128::from(job.pace.speed_milli(job.spec.gang.nodes, elastic, nodes));
        let limit = job.spec.time_limit.map(|limit| (attempt.allocated_at + limit).since(now));
        let horizon = limit.map_or(GROWTH_HORIZON, |left| left.min(GROWTH_HORIZON));
        let restart = self.queues.configuration().preemption.restart;
        let lost = since_durable(now, attempt.placed_at, job.checkpoint_at) + restart.save + restart.restore;
        let from = width_of(attempt).get();
        let gained = speed(to).saturating_sub(speed(from)) * horizon.as_nanos();
        gained > GAIN_FACTOR * speed(from) * lost.as_nanos()
    }

    fn has_idle_node(&self, job: &Job) -> bool {
        self.cluster.topology().root().with_devices_for(&job.spec.gang) > 0
    }

    /// The nodes of the widest room, up to `most`, beside what others have a claim to, with the job's own as if they were
    /// free: they are, when it starts again.
    fn wider(&self, now: Timestamp, job: &Job, attempt: &Attempt, most: u32) -> Option<Vec<NodeId>> {
        let mut cluster = self.cluster.clone();
        attempt.shares.iter().for_each(|share| cluster.release(share));
        let claims = self.claims_beside(job.id);
        let beside = self.beside(now, &job.applicant(), &claims, &[]);
        let from = width_of(attempt).get();
        let (mut least, mut most, mut best) = (from, most, None);
        while least < most {
            let middle = least + (most - least).div_ceil(2);
            let gang = job.spec.gang.of_nodes(NonZeroU32::new(middle)?);
            match placement::find_room(&cluster, &gang, &|node| beside.usable(node)) {
                Some(room) => (best, least) = (Some(room), middle),
                None => most = middle - 1,
            }
        }
        best.map(|room| room.shares.iter().map(|share| share.node).collect())
    }
}
