//! What the control plane notes for bills beside the engine's entries: a state that lasts until the next note of the same
//! thing.

use super::capacity::CapacityChanged;
use super::storage::StorageMeasured;

/// A note for bills.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Noted {
    /// What a node offers.
    Capacity(CapacityChanged),
    /// How much data is stored in a folder.
    Storage(StorageMeasured),
}

impl Noted {
    /// Returns the node or the folder.
    #[must_use]
    pub fn subject(&self) -> &str {
        match self {
            Noted::Capacity(changed) => &changed.node,
            Noted::Storage(measured) => &measured.folder,
        }
    }

    /// Returns the body of the journal record.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Noted::Capacity(changed) => changed.encode(),
            Noted::Storage(measured) => measured.encode(),
        }
    }
}
