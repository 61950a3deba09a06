//! The engine's snapshot, as stored on disk.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use gangline_base::{AttemptNumber, Epoch, JobId, JobSpec, Money, NodeId, Step, SweepId, Timestamp};
use gangline_orchestration::{
    Account, Attempt, Job, JobState, LossHistory, NodeCache, NodeCondition, NodeSpec, Share, ShareState, Snapshot,
    Sweep,
};
use serde::{Deserialize, Serialize};

use super::budget::{OverBudgetV1, SpentBudgetV1};
use super::caches::NodeCacheV1;
use super::change::DependencyV1;
use super::claim::ClaimV1;
use super::entry::{EndV1, NodeV1, ShareV1, StopV1};
use super::history::{HistoryV1, history_from_disk, history_to_disk, nanos};
use super::pace::PaceV1;
use super::remedy::{KeptV1, RollbackV1};
use super::sharing::{
    ConfigurationV1, HoursUsedV1, QueueUsageV1, usages_from_disk, usages_to_disk, used_from_disk, used_to_disk,
};
use super::spares::LossHistoryV1;
use super::spec::SpecV1;
use super::standing::{HealthV1, OutsideV1, StatusV1};
use super::sweep::SweepV1;
use super::{Error, VERSION, VERSION_SHARED, decode, encode};

#[derive(Serialize, Deserialize)]
struct SnapshotV1 {
    at: Timestamp,
    next_job: u64,
    #[serde(default)]
    epoch: Epoch,
    nodes: Vec<(NodeV1, StatusV1)>,
    #[serde(default)]
    leaving: Vec<(NodeId, Timestamp)>,
    jobs: Vec<JobV1>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    sweeps: Vec<SweepV1>,
    #[serde(default)]
    configuration: Option<ConfigurationV1>,
    #[serde(default)]
    usages: Vec<QueueUsageV1>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    hours: Vec<HoursUsedV1>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    histories: Vec<HistoryV1>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    health: Vec<HealthV1>,
    /// External usage of nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    outside: Vec<(NodeId, OutsideV1)>,
    #[serde(default)]
    losses: Option<LossHistoryV1>,
    /// Data sets that each node read recently.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    datasets: Vec<(NodeId, Vec<String>)>,
    /// What the caches of datasets on each node hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    caches: Vec<(NodeId, Vec<NodeCacheV1>)>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    spent_budgets: Vec<SpentBudgetV1>,
}

#[derive(Serialize, Deserialize)]
struct JobV1 {
    id: JobId,
    /// Missing if it equals its sweep's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    spec: Option<SpecV1>,
    submitted_at: Timestamp,
    /// Missing if it equals the submission time, as before queues had an order.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    turn: Option<Timestamp>,
    state: StateV1,
    /// In nanoseconds; missing if the job has had no devices, and in snapshots from before run times were
    /// learned.
    #[serde(default, skip_serializing_if = "is_zero")]
    ran: u64,
    /// Missing if it never led, as before there was ageing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    led_at: Option<Timestamp>,
    attempts: u32,
    faults: u32,
    faults_without_progress: u32,
    requeues: u32,
    #[serde(default)]
    preemptions: u32,
    #[serde(default)]
    is_recovering: bool,
    checkpoint: Option<Step>,
    #[serde(default)]
    checkpoint_at: Option<Timestamp>,
    #[serde(default)]
    claim: Option<ClaimV1>,
    #[serde(default)]
    resizes: u32,
    #[serde(default)]
    width: Option<u32>,
    #[serde(default, skip_serializing_if = "PaceV1::is_empty")]
    pace: PaceV1,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kept: Option<KeptV1>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    rollback: Option<RollbackV1>,
    is_cancelled: bool,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_held: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    over_budget: Option<OverBudgetV1>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    is_exempt: bool,
    /// The dependencies that aren't met yet.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    after: BTreeSet<DependencyV1>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    broken: Option<DependencyV1>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    sweep: Option<SweepId>,
    /// For a job with a budget: the money spent, and the time up to which it was counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    account: Option<(Money, Timestamp)>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StateV1 {
    Queued { since: Timestamp, not_before: Timestamp },
    Allocated(AttemptV1),
}

#[derive(Serialize, Deserialize)]
struct AttemptV1 {
    number: AttemptNumber,
    #[serde(default)]
    epoch: Epoch,
    placed_at: Timestamp,
    /// Missing if it equals the placement time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    allocated_at: Option<Timestamp>,
    shares: Vec<(ShareV1, ShareStateV1)>,
    stop: Option<StopV1>,
    #[serde(default)]
    stop_at: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    straggler: Option<NodeId>,
    checkpoint_at_start: Option<Step>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ShareStateV1 {
    Launching,
    Running,
    Ended(EndV1),
}

/// Encodes a snapshot's body.
pub fn encode_snapshot(snapshot: &Snapshot) -> Vec<u8> {
    let shared: BTreeMap<SweepId, &Arc<JobSpec>> =
        snapshot.sweeps.iter().filter_map(|sweep| Some((sweep.id, &sweep.spec.as_ref()?.job))).collect();
    let body = SnapshotV1 {
        at: snapshot.at,
        next_job: snapshot.next_job,
        epoch: snapshot.epoch,
        nodes: snapshot.nodes.iter().map(|(spec, standing)| (spec.into(), (*standing).into())).collect(),
        leaving: snapshot.leaving.clone(),
        jobs: snapshot.jobs.iter().map(|job| JobV1::new(job, &shared)).collect(),
        sweeps: snapshot.sweeps.iter().map(SweepV1::from).collect(),
        configuration: Some(ConfigurationV1::from(&snapshot.configuration)),
        usages: snapshot.usages.iter().map(usages_to_disk).collect(),
        hours: snapshot.hours.iter().map(used_to_disk).collect(),
        histories: snapshot.histories.iter().map(history_to_disk).collect(),
        health: (0..).zip(snapshot.nodes.iter().map(|(_, standing)| standing)).filter_map(HealthV1::of).collect(),
        outside: (0..).zip(snapshot.nodes.iter().map(|(_, standing)| standing)).filter_map(OutsideV1::of).collect(),
        losses: Some((&snapshot.losses).into()),
        datasets: snapshot.datasets.clone(),
        caches: snapshot.caches.iter().map(caches_to_disk).collect(),
        spent_budgets: snapshot.spent_budgets.iter().cloned().map(Into::into).collect(),
    };
    encode(if shared.is_empty() { VERSION } else { VERSION_SHARED }, body)
}

/// Decodes a snapshot's body.
pub fn decode_snapshot(body: &[u8]) -> Result<Snapshot, Error> {
    let snapshot: SnapshotV1 = decode(body)?;
    let mut nodes: Vec<(NodeSpec, NodeCondition)> =
        snapshot.nodes.into_iter().map(|(node, status)| (node.into(), status.into())).collect();
    for (node, health) in snapshot.health.into_iter().map(HealthV1::read) {
        let place = usize::try_from(node.0).expect("a usize holds 32 bits");
        nodes.get_mut(place).ok_or(Error::Impossible("node"))?.1.health = health;
    }
    for (node, outside) in snapshot.outside {
        let place = usize::try_from(node.0).expect("a usize holds 32 bits");
        nodes.get_mut(place).ok_or(Error::Impossible("node"))?.1.outside = outside.into();
    }
    let sweeps: Vec<Sweep> = snapshot.sweeps.into_iter().map(Sweep::try_from).collect::<Result<_, _>>()?;
    let shared: BTreeMap<SweepId, Arc<JobSpec>> =
        sweeps.iter().filter_map(|sweep| Some((sweep.id, sweep.spec.as_ref()?.job.clone()))).collect();
    let new = LossHistory { at: snapshot.at, ..LossHistory::default() };
    Ok(Snapshot {
        at: snapshot.at,
        next_job: snapshot.next_job,
        epoch: snapshot.epoch,
        nodes,
        leaving: snapshot.leaving,
        jobs: snapshot.jobs.into_iter().map(|job| job.read(&shared)).collect::<Result<_, _>>()?,
        sweeps,
        configuration: snapshot.configuration.map(Into::into).unwrap_or_default(),
        usages: snapshot.usages.into_iter().map(usages_from_disk).collect(),
        hours: snapshot.hours.into_iter().map(used_from_disk).collect(),
        histories: snapshot.histories.into_iter().map(history_from_disk).collect(),
        losses: snapshot.losses.map_or(new, Into::into),
        datasets: snapshot.datasets,
        caches: snapshot.caches.into_iter().map(caches_from_disk).collect(),
        spent_budgets: snapshot.spent_budgets.into_iter().map(Into::into).collect(),
    })
}

fn caches_to_disk((node, caches): &(NodeId, Vec<NodeCache>)) -> (NodeId, Vec<NodeCacheV1>) {
    (*node, caches.iter().cloned().map(NodeCacheV1::from).collect())
}

fn caches_from_disk((node, caches): (NodeId, Vec<NodeCacheV1>)) -> (NodeId, Vec<NodeCache>) {
    (node, caches.into_iter().map(NodeCache::from).collect())
}

impl JobV1 {
    /// Leaves out the specification if the job's sweep has the same one.
    fn new(job: &Job, shared: &BTreeMap<SweepId, &Arc<JobSpec>>) -> Self {
        let of_sweep = job.sweep.and_then(|sweep| shared.get(&sweep));
        let is_shared = of_sweep.is_some_and(|spec| Arc::ptr_eq(spec, &job.spec));
        JobV1 {
            id: job.id,
            spec: (!is_shared).then(|| SpecV1::from(&*job.spec)),
            submitted_at: job.submitted_at,
            turn: (job.turn != job.submitted_at).then_some(job.turn),
            state: match &job.state {
                JobState::Queued { since, not_before } => StateV1::Queued { since: *since, not_before: *not_before },
                JobState::Allocated(attempt) => StateV1::Allocated(attempt.into()),
            },
            ran: nanos(job.ran),
            led_at: job.led_at,
            attempts: job.attempts,
            faults: job.faults,
            faults_without_progress: job.faults_without_progress,
            requeues: job.requeues,
            preemptions: job.preemptions,
            is_recovering: job.is_recovering,
            checkpoint: job.checkpoint,
            checkpoint_at: job.checkpoint_at,
            claim: job.claim.clone().map(ClaimV1::from),
            resizes: job.resizes,
            width: job.width,
            pace: PaceV1::from(&job.pace),
            kept: job.kept.as_ref().map(KeptV1::from),
            rollback: job.rollback.map(RollbackV1::from),
            is_cancelled: job.is_cancelled,
            is_held: job.is_held,
            over_budget: job.over_budget.clone().map(OverBudgetV1::from),
            is_exempt: job.is_exempt,
            after: job.after.iter().copied().map(DependencyV1::from).collect(),
            broken: job.broken.map(DependencyV1::from),
            sweep: job.sweep,
            account: (job.account != Account::default()).then_some((job.account.spent, job.account.metered_to)),
        }
    }
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's skip_serializing_if passes a reference")]
fn is_zero(nanos: &u64) -> bool {
    *nanos == 0
}

impl JobV1 {
    fn read(self, shared: &BTreeMap<SweepId, Arc<JobSpec>>) -> Result<Job, Error> {
        let job = self;
        let spec = match job.spec {
            Some(spec) => Arc::new(spec.try_into()?),
            None => job.sweep.and_then(|sweep| shared.get(&sweep)).cloned().ok_or(Error::Impossible("sweep"))?,
        };
        Ok(Job {
            id: job.id,
            spec,
            submitted_at: job.submitted_at,
            turn: job.turn.unwrap_or(job.submitted_at),
            state: match job.state {
                StateV1::Queued { since, not_before } => JobState::Queued { since, not_before },
                StateV1::Allocated(attempt) => JobState::Allocated(attempt.into()),
            },
            ran: Duration::from_nanos(job.ran),
            led_at: job.led_at,
            attempts: job.attempts,
            faults: job.faults,
            faults_without_progress: job.faults_without_progress,
            requeues: job.requeues,
            preemptions: job.preemptions,
            is_recovering: job.is_recovering,
            checkpoint: job.checkpoint,
            checkpoint_at: job.checkpoint_at,
            claim: job.claim.map(Into::into),
            resizes: job.resizes,
            width: job.width,
            pace: job.pace.into(),
            kept: job.kept.map(Into::into),
            rollback: job.rollback.map(Into::into),
            is_cancelled: job.is_cancelled,
            is_held: job.is_held,
            over_budget: job.over_budget.map(Into::into),
            is_exempt: job.is_exempt,
            after: job.after.into_iter().map(Into::into).collect(),
            broken: job.broken.map(Into::into),
            sweep: job.sweep,
            account: job.account.map(|(spent, metered_to)| Account { spent, metered_to }).unwrap_or_default(),
        })
    }
}

impl From<&Attempt> for AttemptV1 {
    fn from(attempt: &Attempt) -> Self {
        let state = |state: &ShareState| match state {
            ShareState::Launching => ShareStateV1::Launching,
            ShareState::Running => ShareStateV1::Running,
            ShareState::Ended(end) => ShareStateV1::Ended(end.into()),
        };
        let shares = attempt.shares.iter().zip(&attempt.states);
        AttemptV1 {
            number: attempt.number,
            epoch: attempt.epoch,
            placed_at: attempt.placed_at,
            allocated_at: (attempt.allocated_at != attempt.placed_at).then_some(attempt.allocated_at),
            shares: shares.map(|(share, s)| (ShareV1::from(share), state(s))).collect(),
            stop: attempt.stop.map(StopV1::from),
            stop_at: attempt.stop_at,
            straggler: attempt.straggler,
            checkpoint_at_start: attempt.checkpoint_at_start,
        }
    }
}

impl From<AttemptV1> for Attempt {
    fn from(attempt: AttemptV1) -> Self {
        let state = |state| match state {
            ShareStateV1::Launching => ShareState::Launching,
            ShareStateV1::Running => ShareState::Running,
            ShareStateV1::Ended(end) => ShareState::Ended(end.into()),
        };
        let (shares, states) = attempt.shares.into_iter().map(|(share, s)| (Share::from(share), state(s))).unzip();
        Attempt {
            number: attempt.number,
            epoch: attempt.epoch,
            placed_at: attempt.placed_at,
            allocated_at: attempt.allocated_at.unwrap_or(attempt.placed_at),
            shares,
            states,
            stop: attempt.stop.map(Into::into),
            stop_at: attempt.stop_at,
            straggler: attempt.straggler,
            checkpoint_at_start: attempt.checkpoint_at_start,
        }
    }
}
