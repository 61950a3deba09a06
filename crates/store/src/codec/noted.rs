//! What the control plane notes for bills beside the engine's entries: a state that lasts until the next note of the same
//! thing, what an attempt did, or an incident.

use super::capacity::CapacityChanged;
use super::incident::{IncidentMet, IncidentOf};
use super::requests::{FetchV1, RequestsMade};
use super::storage::StorageMeasured;

/// A note for bills.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Noted {
    /// What a node offers.
    Capacity(CapacityChanged),
    /// How much data is stored in a folder.
    Storage(StorageMeasured),
    /// What an attempt asked of object storage.
    Requests(RequestsMade),
    /// An incident that people look after.
    Incident(IncidentMet),
}

impl Noted {
    /// Says what the note is about, in words that follow "the note of".
    #[must_use]
    pub fn subject(&self) -> String {
        match self {
            Noted::Capacity(changed) => format!("what node {} offered", changed.node),
            Noted::Storage(measured) => format!("what was stored in {}", measured.folder),
            Noted::Requests(RequestsMade { job, fetch: Some(FetchV1 { node, began }), .. }) => {
                format!("what {node} fetched for {job} from {began} ns on")
            }
            Noted::Incident(IncidentMet { subject: IncidentOf::Job(job), .. }) => format!("the failure of {job}"),
            Noted::Incident(IncidentMet { subject: IncidentOf::Node(node), .. }) => format!("a fault of node {node}"),
            Noted::Requests(made) => format!("what attempt {} of {} asked of object storage", made.attempt, made.job),
        }
    }

    /// Returns the body of the journal record.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Noted::Capacity(changed) => changed.encode(),
            Noted::Storage(measured) => measured.encode(),
            Noted::Requests(made) => made.encode(),
            Noted::Incident(incident) => incident.encode(),
        }
    }
}
