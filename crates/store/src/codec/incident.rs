//! An incident that people look after, as stored on disk: noted by the control plane as it happens, with the price of then.

use gangline_accounting::bill::Incident;
use gangline_base::{JobId, Money};
use serde::{Deserialize, Serialize};

use super::storage::StorageOwner;
use super::{VERSION_STORAGE, encode};

/// An incident.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IncidentMet {
    /// What it befell.
    pub subject: IncidentOf,
    /// Whom it is charged to; `None` for what all jobs share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<StorageOwner>,
    /// The time that it takes a person, in nanoseconds.
    pub nanos: u64,
    /// What an hour of the person costs.
    pub per_hour: Money,
}

/// What an incident befell.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum IncidentOf {
    /// A job failed in the end.
    Job(JobId),
    /// A node was lost, or had faults of its own.
    Node(String),
}

impl IncidentOf {
    /// Returns the name of the job or the node.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            IncidentOf::Job(job) => job.to_string(),
            IncidentOf::Node(node) => node.clone(),
        }
    }
}

impl IncidentMet {
    /// Returns what is billed.
    #[must_use]
    pub const fn incident(&self) -> Incident {
        Incident { nanos: self.nanos, per_hour: self.per_hour }
    }

    /// Returns the body of the journal record.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        #[derive(Serialize)]
        #[serde(rename_all = "snake_case")]
        enum Body<'a> {
            IncidentMet(&'a IncidentMet),
        }
        encode(VERSION_STORAGE, Body::IncidentMet(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::codec::{Noted, Recorded, decode_entry};

    /// Proves A-9: every later version reads what this version wrote.
    #[test]
    fn an_incident_reads_back_and_stays_readable() {
        let owner = StorageOwner {
            job: JobId(7),
            name: "gpt".to_owned(),
            user: "ada".to_owned(),
            queue: "research".to_owned(),
        };
        let per_hour = Money::from_nano_dollars(95_000_000_000);
        let of_job = IncidentMet { subject: IncidentOf::Job(JobId(7)), owner: Some(owner), nanos: 9, per_hour };
        let of_node = IncidentMet { subject: IncidentOf::Node("n1".to_owned()), owner: None, nanos: 8, per_hour };
        let written = [
            r#"{"v":5,"body":{"incident_met":{"subject":{"job":7},"owner":{"job":7,"name":"gpt","user":"ada","queue":"research"},"nanos":9,"per_hour":95000000000}}}"#,
            r#"{"v":5,"body":{"incident_met":{"subject":{"node":"n1"},"nanos":8,"per_hour":95000000000}}}"#,
        ];
        for (incident, written) in [of_job, of_node].into_iter().zip(written) {
            assert_eq!(String::from_utf8_lossy(&incident.encode()), written);
            let read = decode_entry(written.as_bytes());
            assert!(matches!(read, Ok(Recorded::Noted(read)) if *read == Noted::Incident(incident)));
        }
    }
}
