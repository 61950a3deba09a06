//! Events and decisions as stored on disk.

use std::sync::Arc;
use std::time::Duration;

use gangline_base::{
    AcceleratorKind, AttemptNumber, Bytes, Epoch, FaultCategory, JobId, Money, NodeId, NodeName, PoolName, Step,
    Submitter, SweepId, Timestamp,
};
use gangline_orchestration::{
    Decision, Entry, Event, Fate, NodeCapacity, NodeSpec, RequeueReason, Share, ShareEnd, StopReason,
};
use serde::{Deserialize, Serialize};

use super::budget::SpentBudgetV1;
use super::caches::NodeCacheV1;
use super::capacity::CapacityChanged;
use super::cause::CauseV1;
use super::change::{ChangeV1, DependencyV1};
use super::claim::ClaimDecisionV1;
use super::closed::ClosedAttempt;
use super::incident::IncidentMet;
use super::noted::Noted;
use super::place::PlaceV1;
use super::remedy::RemedyV1;
use super::requests::RequestsMade;
use super::sharing::ConfigurationV1;
use super::spec::{SpecV1, millis};
use super::standing::OutsideV1;
use super::storage::StorageMeasured;
use super::sweep::{MetricV1, MissedV1, SweepSpecV1};
use super::topology::{LayoutV1, LocationV1};
use super::{Error, VERSION, VERSION_SHARED, decode, encode};

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum EntryV1 {
    NodeJoined(NodeV1),
    NodeLost {
        node: NodeId,
    },
    DrainRequested {
        node: NodeId,
        #[serde(default)]
        within_ms: Option<u64>,
    },
    DrainCancelled {
        node: NodeId,
    },
    NodeObserved {
        node: NodeId,
        outside: OutsideV1,
    },
    NodeFaulty {
        node: NodeId,
    },
    BudgetsSpent(Vec<SpentBudgetV1>),
    DatasetsCached {
        node: NodeId,
        cache: NodeCacheV1,
    },
    StragglerFound {
        job: JobId,
        attempt: AttemptNumber,
        node: NodeId,
    },
    Configured(ConfigurationV1),
    JobSubmitted(Box<SpecV1>),
    SweepSubmitted(Box<SweepSpecV1>),
    SweepCancelRequested {
        sweep: SweepId,
        by: String,
    },
    MetricReported {
        job: JobId,
        attempt: AttemptNumber,
        step: Step,
        value: MetricV1,
    },
    CancelRequested {
        job: JobId,
        by: String,
    },
    ChangeRequested {
        job: JobId,
        changes: Vec<ChangeV1>,
        by: String,
    },
    ShareStarted {
        job: JobId,
        attempt: AttemptNumber,
        node: NodeId,
    },
    ShareEnded {
        job: JobId,
        attempt: AttemptNumber,
        node: NodeId,
        end: EndV1,
    },
    CheckpointCommitted {
        job: JobId,
        attempt: AttemptNumber,
        step: Step,
    },
    IdsSkipped {
        below: JobId,
    },
    EpochBegan {
        epoch: Epoch,
    },
    TimePassed,
    Place(PlaceV1),
    Claim(ClaimDecisionV1),
    Stop {
        job: JobId,
        attempt: AttemptNumber,
        reason: StopV1,
    },
    Requeue {
        job: JobId,
        attempt: AttemptNumber,
        not_before: Timestamp,
        reason: RequeueV1,
    },
    End {
        job: JobId,
        fate: FateV1,
    },
    AttemptClosed(Box<ClosedAttempt>),
    CapacityChanged(Box<CapacityChanged>),
    StorageMeasured(Box<StorageMeasured>),
    RequestsMade(Box<RequestsMade>),
    IncidentMet(Box<IncidentMet>),
}

/// The content of a journal record.
#[derive(Clone, Debug, PartialEq)]
pub enum Recorded {
    /// An event or a decision; the engine's state follows from these alone.
    Engine(Box<Entry>),
    /// The result of an attempt, stored with the decision that ended it.
    Closed(Box<ClosedAttempt>),
    /// What bills are made of beside the ledger.
    Noted(Box<Noted>),
}

impl Recorded {
    /// Returns the engine's entry, if this is one.
    #[must_use]
    pub fn engine(self) -> Option<Entry> {
        match self {
            Recorded::Engine(entry) => Some(*entry),
            Recorded::Closed(_) | Recorded::Noted(_) => None,
        }
    }
}

#[derive(Serialize, Deserialize)]
pub(super) struct NodeV1 {
    name: NodeName,
    accelerator: String,
    accelerators: u32,
    cpus: u32,
    memory: Bytes,
    #[serde(default, skip_serializing_if = "LocationV1::is_empty")]
    location: LocationV1,
    #[serde(default, skip_serializing_if = "PoolName::is_default")]
    pool: PoolName,
    #[serde(default, skip_serializing_if = "LayoutV1::is_unknown")]
    layout: LayoutV1,
}

#[derive(Serialize, Deserialize)]
pub(super) struct ShareV1 {
    node: NodeId,
    devices: Vec<u32>,
    cpus: u32,
    memory: Bytes,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum EndV1 {
    Succeeded,
    DoNotRestart,
    Requeue,
    Fault {
        cause: CauseV1,
        /// Missing in older journals, which didn't record it.
        #[serde(default)]
        category: FaultCategory,
        #[serde(default)]
        is_consequence: bool,
        at: Timestamp,
    },
    Stopped,
    Terminated,
    Unable,
    Withdrawn,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum StopV1 {
    Cancelled,
    TimeLimit { limit_ms: u64 },
    PeerEnded,
    BudgetSpent,
    SharedBudgetSpent,
    EarlyStop(MissedV1),
    Preempted { by: JobId },
    NodeLeaves { node: NodeId },
    Straggler { node: NodeId },
    Resized { to: u32 },
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum RequeueV1 {
    Fault {
        cause: CauseV1,
        #[serde(default)]
        category: FaultCategory,
        faults: u32,
        max_faults: u32,
        #[serde(default)]
        remedy: RemedyV1,
    },
    Asked,
    Orphaned,
    Terminated,
    Unable,
    Withdrawn,
    Preempted {
        by: JobId,
    },
    NodeLeft {
        node: NodeId,
    },
    Straggler {
        node: NodeId,
    },
    Resized {
        to: u32,
    },
    SharedBudgetSpent,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum FateV1 {
    Succeeded,
    Cancelled,
    TimedOut,
    DoNotRestart,
    FaultsExhausted { cause: CauseV1, faults: u32 },
    NoProgress { cause: CauseV1, faults: u32 },
    NotRetried { cause: CauseV1, category: FaultCategory },
    RequeuesExhausted { requeues: u32 },
    BudgetSpent { spent: Money, budget: Money },
    EarlyStop(MissedV1),
    DependencyFailed(DependencyV1),
}

/// Encodes an entry as the body of a journal record.
#[must_use]
pub fn encode_entry(entry: &Entry) -> Vec<u8> {
    match entry {
        Entry::Event(event) => encode(version_of(event), event_to_disk(event)),
        Entry::Decision(decision) => encode(VERSION, decision_to_disk(decision)),
    }
}

pub(super) fn version_of(event: &Event) -> u32 {
    if matches!(event, Event::SweepSubmitted(_)) { VERSION_SHARED } else { VERSION }
}

/// Decodes the body of a journal record.
///
/// # Errors
/// Returns an [`Error`] for a body that this version can't read.
pub fn decode_entry(body: &[u8]) -> Result<Recorded, Error> {
    match decode(body)? {
        EntryV1::AttemptClosed(closed) => Ok(Recorded::Closed(closed)),
        EntryV1::CapacityChanged(changed) => Ok(Recorded::Noted(Box::new(Noted::Capacity(*changed)))),
        EntryV1::StorageMeasured(measured) => Ok(Recorded::Noted(Box::new(Noted::Storage(*measured)))),
        EntryV1::RequestsMade(made) => Ok(Recorded::Noted(Box::new(Noted::Requests(*made)))),
        EntryV1::IncidentMet(incident) => Ok(Recorded::Noted(Box::new(Noted::Incident(*incident)))),
        entry => Ok(Recorded::Engine(Box::new(entry_from_disk(entry)?))),
    }
}

pub(super) fn event_to_disk(event: &Event) -> EntryV1 {
    match event.clone() {
        Event::NodeJoined(spec) => EntryV1::NodeJoined(NodeV1::from(&spec)),
        Event::NodeLost { node } => EntryV1::NodeLost { node },
        Event::DrainRequested { node, within } => EntryV1::DrainRequested { node, within_ms: within.map(millis) },
        Event::DrainCancelled { node } => EntryV1::DrainCancelled { node },
        Event::NodeObserved { node, outside } => EntryV1::NodeObserved { node, outside: outside.into() },
        Event::NodeFaulty { node } => EntryV1::NodeFaulty { node },
        Event::BudgetsSpent(spent) => EntryV1::BudgetsSpent(spent.into_iter().map(Into::into).collect()),
        Event::DatasetsCached { node, cache } => EntryV1::DatasetsCached { node, cache: cache.into() },
        Event::StragglerFound { job, attempt, node } => EntryV1::StragglerFound { job, attempt, node },
        Event::Configured(configuration) => EntryV1::Configured(ConfigurationV1::from(&*configuration)),
        Event::JobSubmitted(spec) => EntryV1::JobSubmitted(Box::new(SpecV1::from(&*spec))),
        Event::SweepSubmitted(sweep) => EntryV1::SweepSubmitted(Box::new(SweepSpecV1::from(&*sweep))),
        Event::SweepCancelRequested { sweep, by } => EntryV1::SweepCancelRequested { sweep, by: by.0 },
        Event::MetricReported { job, attempt, step, value } => {
            EntryV1::MetricReported { job, attempt, step, value: value.into() }
        }
        Event::CancelRequested { job, by } => EntryV1::CancelRequested { job, by: by.0 },
        Event::ChangeRequested { job, changes, by } => {
            EntryV1::ChangeRequested { job, changes: changes.into_iter().map(ChangeV1::from).collect(), by: by.0 }
        }
        Event::ShareStarted { job, attempt, node } => EntryV1::ShareStarted { job, attempt, node },
        Event::ShareEnded { job, attempt, node, end } => {
            EntryV1::ShareEnded { job, attempt, node, end: EndV1::from(&end) }
        }
        Event::CheckpointCommitted { job, attempt, step } => EntryV1::CheckpointCommitted { job, attempt, step },
        Event::IdsSkipped { below } => EntryV1::IdsSkipped { below },
        Event::EpochBegan { epoch } => EntryV1::EpochBegan { epoch },
        Event::TimePassed => EntryV1::TimePassed,
    }
}

fn decision_to_disk(decision: &Decision) -> EntryV1 {
    match decision.clone() {
        Decision::Place { job, attempt, shares, reason } => EntryV1::Place(PlaceV1::new(job, attempt, &shares, reason)),
        Decision::Claim { job, claim, reason } => EntryV1::Claim(ClaimDecisionV1::new(job, claim, reason)),
        Decision::Stop { job, attempt, reason } => EntryV1::Stop { job, attempt, reason: StopV1::from(reason) },
        Decision::Requeue { job, attempt, not_before, reason } => {
            EntryV1::Requeue { job, attempt, not_before, reason: reason.into() }
        }
        Decision::End { job, fate } => EntryV1::End { job, fate: FateV1::from(fate) },
    }
}

fn entry_from_disk(entry: EntryV1) -> Result<Entry, Error> {
    let event = match entry {
        EntryV1::NodeJoined(node) => Event::NodeJoined(node.into()),
        EntryV1::NodeLost { node } => Event::NodeLost { node },
        EntryV1::DrainRequested { node, within_ms } => {
            Event::DrainRequested { node, within: within_ms.map(Duration::from_millis) }
        }
        EntryV1::DrainCancelled { node } => Event::DrainCancelled { node },
        EntryV1::NodeObserved { node, outside } => Event::NodeObserved { node, outside: outside.into() },
        EntryV1::NodeFaulty { node } => Event::NodeFaulty { node },
        EntryV1::BudgetsSpent(spent) => Event::BudgetsSpent(spent.into_iter().map(Into::into).collect()),
        EntryV1::DatasetsCached { node, cache } => Event::DatasetsCached { node, cache: cache.into() },
        EntryV1::StragglerFound { job, attempt, node } => Event::StragglerFound { job, attempt, node },
        EntryV1::Configured(configuration) => Event::Configured(Arc::new(configuration.into())),
        EntryV1::JobSubmitted(spec) => Event::JobSubmitted(Arc::new((*spec).try_into()?)),
        EntryV1::SweepSubmitted(sweep) => Event::SweepSubmitted(Arc::new((*sweep).try_into()?)),
        EntryV1::SweepCancelRequested { sweep, by } => Event::SweepCancelRequested { sweep, by: Submitter(by) },
        EntryV1::MetricReported { job, attempt, step, value } => {
            Event::MetricReported { job, attempt, step, value: value.into() }
        }
        EntryV1::CancelRequested { job, by } => Event::CancelRequested { job, by: Submitter(by) },
        EntryV1::ChangeRequested { job, changes, by } => {
            let changes = changes.into_iter().map(TryInto::try_into).collect::<Result<_, _>>()?;
            Event::ChangeRequested { job, changes, by: Submitter(by) }
        }
        EntryV1::ShareStarted { job, attempt, node } => Event::ShareStarted { job, attempt, node },
        EntryV1::ShareEnded { job, attempt, node, end } => Event::ShareEnded { job, attempt, node, end: end.into() },
        EntryV1::CheckpointCommitted { job, attempt, step } => Event::CheckpointCommitted { job, attempt, step },
        EntryV1::IdsSkipped { below } => Event::IdsSkipped { below },
        EntryV1::EpochBegan { epoch } => Event::EpochBegan { epoch },
        EntryV1::TimePassed => Event::TimePassed,
        EntryV1::Place(place) => return Ok(Entry::Decision(place.into())),
        EntryV1::Claim(claim) => return Ok(Entry::Decision(claim.into())),
        EntryV1::Stop { job, attempt, reason } => {
            return Ok(Entry::Decision(Decision::Stop { job, attempt, reason: reason.into() }));
        }
        EntryV1::Requeue { job, attempt, not_before, reason } => {
            let reason = reason.into();
            return Ok(Entry::Decision(Decision::Requeue { job, attempt, not_before, reason }));
        }
        EntryV1::End { job, fate } => return Ok(Entry::Decision(Decision::End { job, fate: fate.into() })),
        EntryV1::AttemptClosed(_)
        | EntryV1::CapacityChanged(_)
        | EntryV1::StorageMeasured(_)
        | EntryV1::RequestsMade(_)
        | EntryV1::IncidentMet(_) => {
            return Err(Error::Impossible("entry of the engine"));
        }
    };
    Ok(Entry::Event(event))
}

impl From<&NodeSpec> for NodeV1 {
    fn from(spec: &NodeSpec) -> Self {
        let NodeCapacity { pool, accelerator, accelerators, cpus, memory } = spec.capacity.clone();
        let (location, layout) = (LocationV1::from(&spec.location), LayoutV1::from(spec.layout.clone()));
        NodeV1 {
            name: spec.name.clone(),
            accelerator: accelerator.0,
            accelerators,
            cpus,
            memory,
            location,
            pool,
            layout,
        }
    }
}

impl From<NodeV1> for NodeSpec {
    fn from(node: NodeV1) -> Self {
        let NodeV1 { name, accelerator, accelerators, cpus, memory, location, pool, layout } = node;
        let accelerator = AcceleratorKind(accelerator);
        let capacity = NodeCapacity { pool, accelerator, accelerators, cpus, memory };
        NodeSpec { name, capacity, location: location.into(), layout: layout.into() }
    }
}

impl From<&Share> for ShareV1 {
    fn from(share: &Share) -> Self {
        let Share { node, devices, cpus, memory } = share.clone();
        ShareV1 { node, devices, cpus, memory }
    }
}

impl From<ShareV1> for Share {
    fn from(share: ShareV1) -> Self {
        let ShareV1 { node, devices, cpus, memory } = share;
        Share { node, devices, cpus, memory }
    }
}

/// Converts between two enums with the same variants.
macro_rules! mirror {
    ($disk:ident, $core:ident { $($variant:ident $( ( $field:ident ) )? $( { $($name:ident),+ } )?),+ $(,)? }) => {
        impl From<$core> for $disk {
            fn from(value: $core) -> Self {
                match value { $( $core::$variant $( ($field) )? $( { $($name),+ } )? =>
                    $disk::$variant $( ($field.into()) )? $( { $($name: $name.into()),+ } )? ),+ }
            }
        }
        impl From<$disk> for $core {
            fn from(value: $disk) -> Self {
                match value { $( $disk::$variant $( ($field) )? $( { $($name),+ } )? =>
                    $core::$variant $( ($field.into()) )? $( { $($name: $name.into()),+ } )? ),+ }
            }
        }
    };
}

mirror!(RequeueV1, RequeueReason {
    Fault { cause, category, faults, max_faults, remedy }, Asked, Orphaned, Terminated, Unable, Preempted { by }, NodeLeft { node }, Straggler { node }, Resized { to },
    SharedBudgetSpent, Withdrawn,
});
mirror!(EndV1, ShareEnd { Succeeded, DoNotRestart, Requeue, Fault { cause, category, is_consequence, at }, Stopped, Terminated, Unable, Withdrawn });
mirror!(FateV1, Fate {
    Succeeded, Cancelled, TimedOut, DoNotRestart,
    FaultsExhausted { cause, faults }, NoProgress { cause, faults }, NotRetried { cause, category }, RequeuesExhausted { requeues },
    BudgetSpent { spent, budget }, EarlyStop(missed), DependencyFailed(on),
});

impl From<&ShareEnd> for EndV1 {
    fn from(end: &ShareEnd) -> Self {
        end.clone().into()
    }
}

impl From<StopReason> for StopV1 {
    fn from(reason: StopReason) -> Self {
        match reason {
            StopReason::Cancelled => StopV1::Cancelled,
            StopReason::TimeLimit(limit) => StopV1::TimeLimit { limit_ms: millis(limit) },
            StopReason::PeerEnded => StopV1::PeerEnded,
            StopReason::BudgetSpent => StopV1::BudgetSpent,
            StopReason::SharedBudgetSpent => StopV1::SharedBudgetSpent,
            StopReason::EarlyStop(missed) => StopV1::EarlyStop(missed.into()),
            StopReason::Preempted { by } => StopV1::Preempted { by },
            StopReason::Resized { to } => StopV1::Resized { to },
            StopReason::NodeLeaves { node } => StopV1::NodeLeaves { node },
            StopReason::Straggler { node } => StopV1::Straggler { node },
        }
    }
}

impl From<StopV1> for StopReason {
    fn from(reason: StopV1) -> Self {
        match reason {
            StopV1::Cancelled => StopReason::Cancelled,
            StopV1::TimeLimit { limit_ms } => StopReason::TimeLimit(Duration::from_millis(limit_ms)),
            StopV1::PeerEnded => StopReason::PeerEnded,
            StopV1::BudgetSpent => StopReason::BudgetSpent,
            StopV1::SharedBudgetSpent => StopReason::SharedBudgetSpent,
            StopV1::EarlyStop(missed) => StopReason::EarlyStop(missed.into()),
            StopV1::Preempted { by } => StopReason::Preempted { by },
            StopV1::Resized { to } => StopReason::Resized { to },
            StopV1::NodeLeaves { node } => StopReason::NodeLeaves { node },
            StopV1::Straggler { node } => StopReason::Straggler { node },
        }
    }
}
