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

/// Returns what the job asked for of datasets.
pub(super) fn dataset_reads(record: &JobRecord) -> Vec<DatasetReads> {
    let reads = |(dataset, DatasetReadsRecord { get, head, list, failed, bytes })| DatasetReads {
        dataset,
        get,
        head,
        list,
        failed,
        bytes,
    };
    record.dataset_reads().into_iter().map(reads).collect()
}

/// Adds what was asked for of a dataset while the job waited.
pub(super) fn add_reads(all: &mut Vec<DatasetReads>, reads: DatasetRequests) {
    let DatasetRequests { address, get, head, list, failed, bytes, price: _ } = reads;
    match all.iter_mut().find(|known| known.dataset == address) {
        Some(known) => {
            let requests = [(&mut known.get, get), (&mut known.head, head), (&mut known.list, list)];
            let pairs = requests.into_iter().chain([(&mut known.failed, failed), (&mut known.bytes, bytes)]);
            pairs.for_each(|(sum, more)| *sum = sum.saturating_add(more));
        }
        None => all.push(DatasetReads { dataset: address, get, head, list, failed, bytes }),
    }
}

pub(super) fn checkpoints(checkpoints: CheckpointsRecord) -> Checkpoints {
    let CheckpointsRecord { count, bytes, last_step } = checkpoints;
    Checkpoints { count, bytes, last_step }
}
