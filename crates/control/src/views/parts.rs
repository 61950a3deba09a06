//! Converts the parts of a job's record into the API's types.

use gangline_api::{Checkpoints, Gang, JobState, Progress};

use gangline_store::model::{CheckpointsRecord, GangRecord, ProgressRecord, StateRecord};

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

pub(super) fn progress(progress: ProgressRecord) -> Progress {
    let ProgressRecord { step, total_steps, first_loss, loss, tokens, tokens_per_second } = progress;
    Progress { step, total_steps, first_loss, loss, tokens, tokens_per_second }
}

pub(super) fn checkpoints(checkpoints: CheckpointsRecord) -> Checkpoints {
    let CheckpointsRecord { count, bytes, last_step } = checkpoints;
    Checkpoints { count, bytes, last_step }
}
