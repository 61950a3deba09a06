//! Parts of a job's record that the API shows unchanged. They are the store's own types (A-9), so their
//! format stays when the API's changes. Reports of supervisors are stored in the types of their protocol,
//! which has a version of its own.

use serde::{Deserialize, Serialize};

/// The state of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StateRecord {
    /// The job waits for room.
    Waiting,
    /// The job is placed, and its ranks have not all started.
    Starting,
    /// The ranks train.
    Running,
    /// The ranks have been told to save and stop.
    Stopping,
    /// The job did what it was to do.
    Succeeded,
    /// The job ended otherwise than by success, a cancel, a spent budget or an early stop.
    Failed,
    /// A user cancelled the job.
    Cancelled,
    /// The job was stopped: its budget was spent, or its sweep stopped it early.
    Stopped,
}

impl StateRecord {
    /// All states, in the order of a job's life.
    pub const ALL: [StateRecord; 8] = [
        StateRecord::Waiting,
        StateRecord::Starting,
        StateRecord::Running,
        StateRecord::Stopping,
        StateRecord::Succeeded,
        StateRecord::Failed,
        StateRecord::Cancelled,
        StateRecord::Stopped,
    ];

    /// Returns the state's word, as it is stored and as users see it.
    pub fn name(self) -> &'static str {
        match self {
            StateRecord::Waiting => "waiting",
            StateRecord::Starting => "starting",
            StateRecord::Running => "running",
            StateRecord::Stopping => "stopping",
            StateRecord::Succeeded => "succeeded",
            StateRecord::Failed => "failed",
            StateRecord::Cancelled => "cancelled",
            StateRecord::Stopped => "stopped",
        }
    }

    /// Reports whether the state is final.
    pub fn is_final(self) -> bool {
        use StateRecord as S;
        matches!(self, S::Succeeded | S::Failed | S::Cancelled | S::Stopped)
    }
}

/// The devices that a job asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GangRecord {
    /// The least number of nodes, if the job may be resized.
    pub nodes: u32,
    /// The most nodes that the job may grow to, if it is elastic.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes_max: Option<u32>,
    /// The kind of accelerator, as in the job file; empty if any will do.
    pub accelerator: String,
    /// Accelerators that the job takes of each node.
    pub accelerators_per_node: u32,
    /// Processes that are started on each node.
    pub ranks_per_node: u32,
}

/// A job's progress, by its ranks' reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProgressRecord {
    /// The highest step that a rank reported.
    pub step: Option<u64>,
    /// The step at which training ends, if a rank reported it.
    pub total_steps: Option<u64>,
    /// The loss at the first reported step.
    pub first_loss: Option<f64>,
    /// The loss at the last reported step.
    pub loss: Option<f64>,
    /// Tokens since the attempt began.
    pub tokens: u64,
    /// The rate over the last samples.
    pub tokens_per_second: Option<f64>,
    /// Steps per second over the last minutes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps_per_second: Option<f64>,
    /// The step since which the current attempt's loss has been NaN or infinite.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_finite_since: Option<u64>,
    /// The first step that the gang's first node ever reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_step: Option<u64>,
    /// Tokens of a step over all ranks, by the last attempt that made steps enough to tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens_per_step: Option<f64>,
    /// The first reported step of the current attempt, and the tokens of its first node up to then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt_from: Option<(u64, u64)>,
}

/// A job's saved checkpoints, over all its attempts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckpointsRecord {
    /// Durable checkpoints that the job has made.
    pub count: u32,
    /// Their size in bytes.
    pub bytes: u64,
    /// The step of the last durable checkpoint.
    pub last_step: Option<u64>,
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;

    use super::*;

    /// Asserts that the stored form is the same to the byte and can be read back.
    fn is_stored_as<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(part: &T, stored: &str) {
        assert_eq!(serde_json::to_string(part).expect("string keys only"), stored);
        assert_eq!(serde_json::from_str::<T>(stored).expect("it reads back"), *part);
    }

    /// Proves A-9 for the parts of a job's record: version 1 of the document has this form.
    #[test]
    fn parts_of_a_record_keep_their_stored_form() {
        let states = [
            (StateRecord::Waiting, "\"waiting\""),
            (StateRecord::Starting, "\"starting\""),
            (StateRecord::Running, "\"running\""),
            (StateRecord::Stopping, "\"stopping\""),
            (StateRecord::Succeeded, "\"succeeded\""),
            (StateRecord::Failed, "\"failed\""),
            (StateRecord::Cancelled, "\"cancelled\""),
            (StateRecord::Stopped, "\"stopped\""),
        ];
        states.iter().for_each(|(state, stored)| is_stored_as(state, stored));
        let gang = GangRecord {
            nodes: 2,
            nodes_max: None,
            accelerator: "H100".to_owned(),
            accelerators_per_node: 8,
            ranks_per_node: 8,
        };
        let stored = r#"{"nodes":2,"accelerator":"H100","accelerators_per_node":8,"ranks_per_node":8}"#;
        is_stored_as(&gang, stored);
        let elastic = GangRecord { nodes_max: Some(4), ..gang };
        is_stored_as(&elastic, &stored.replace("2,", "2,\"nodes_max\":4,"));
        let progress = ProgressRecord { step: Some(3), loss: Some(0.5), tokens: 7, ..ProgressRecord::default() };
        let stored =
            r#"{"step":3,"total_steps":null,"first_loss":null,"loss":0.5,"tokens":7,"tokens_per_second":null}"#;
        is_stored_as(&progress, stored);
        let checkpoints = CheckpointsRecord { count: 1, bytes: 9, last_step: Some(3) };
        is_stored_as(&checkpoints, r#"{"count":1,"bytes":9,"last_step":3}"#);
    }
}
