//! Converts the parts of a job's record into the API's types.

use gangline_api::{AgainstPlan, Checkpoints, DatasetReads, Gang, JobState, Progress};

use gangline_store::codec::DatasetRequests;
use gangline_store::model::{
    CheckpointsRecord, DatasetReadsRecord, FaultCauseRecord, GangRecord, JobRecord, ProgressRecord, StateRecord,
};

pub(crate) fn state(state: StateRecord) -> JobState {
    match state {
        StateRecord::Waiting => JobState::Waiting,
        StateRecord::Starting => JobState::Starting,
        StateRecord::Running => JobState::Running,
        StateRecord::Stopping => JobState::Stopping,
        StateRecord::Succeeded => JobState::Succeeded,
        StateRecord::Failed => JobState::Failed,
        StateRecord::Cancelled => JobState::Cancelled,
        StateRecord::Stopped => JobState::Stopped,
    }
}

pub(super) fn gang(gang: &GangRecord) -> Gang {
    let GangRecord { nodes, nodes_max, accelerator, accelerators_per_node, ranks_per_node } = gang.clone();
    Gang { nodes, nodes_max, accelerator, accelerators_per_node, ranks_per_node }
}

pub(super) fn progress(record: &JobRecord) -> Progress {
    let ProgressRecord { step, total_steps, first_loss, loss, tokens, tokens_per_second, .. } = record.progress;
    let ProgressRecord { steps_per_second, not_finite_since, .. } = record.progress;
    let fault = record.last_attempt().and_then(|attempt| attempt.fault.as_ref()).map(|(_, fault)| &fault.cause);
    let by_fault = match fault {
        Some(FaultCauseRecord::NotFinite { step, steps }) => {
            Some(step.saturating_add(1).saturating_sub(u64::from(*steps)))
        }
        _ => None,
    };
    let loss_not_finite_since = not_finite_since.or(by_fault);
    Progress { step, total_steps, first_loss, loss, loss_not_finite_since, tokens, tokens_per_second, steps_per_second }
}

/// Compares the rate over the last samples with the planned one.
pub(super) fn plan(record: &JobRecord) -> Option<AgainstPlan> {
    let planned = record.planned()?;
    let shares = record.last_attempt().filter(|attempt| attempt.ended_at.is_none()).map(|attempt| &attempt.shares);
    let accelerators = shares.into_iter().flatten().map(|share| share.devices.len()).sum();
    let plan = AgainstPlan::of(planned.tokens_per_second(), planned.mfu());
    Some(plan.with_rate(record.progress.tokens_per_second, accelerators))
}

/// Returns what the job asked for of datasets: its attempts, and fetches while it waited.
pub(super) fn dataset_reads(record: &JobRecord, fetched: impl Iterator<Item = DatasetRequests>) -> Vec<DatasetReads> {
    let mut sums = record.dataset_reads();
    for DatasetRequests { address, reads, price: _ } in fetched {
        let sum = sums.entry(address).or_default();
        *sum = sum.and(reads);
    }
    let converted = |(dataset, reads)| {
        let DatasetReadsRecord { get, head, list, put, failed, bytes, in_region_bytes, cross_region_bytes } = reads;
        DatasetReads { dataset, get, head, list, put, failed, bytes, in_region_bytes, cross_region_bytes }
    };
    sums.into_iter().map(converted).collect()
}

pub(super) fn checkpoints(checkpoints: CheckpointsRecord) -> Checkpoints {
    let CheckpointsRecord { count, bytes, last_step } = checkpoints;
    Checkpoints { count, bytes, last_step }
}
