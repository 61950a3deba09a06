//! The journal's encoding: engine entries and snapshots as they are stored on disk.
//!
//! Every body is JSON `{"v":1,...}`. Five versions exist:
//! - Version 1 is the default.
//! - Version 2 is version 1 with one specification shared by all jobs of a sweep. Only a body with such a
//!   sweep is marked 2, so an older gangline reads all other bodies and names the version that it can't read.
//! - Version 3 is the result of an attempt ([`ClosedAttempt`]), which belongs to the control plane rather
//!   than to the engine.
//! - Version 4 is a change of what a node offers ([`CapacityChanged`]), which is the control plane's as well.
//! - Version 5 is how much data a folder holds ([`StorageMeasured`]), what an attempt asked of object storage
//!   ([`RequestsMade`]), an incident that people look after ([`IncidentMet`]), and a change of what a node offers whose devices cost
//!   something beside their price; all are the control plane's too.
//!
//! These types mirror the engine's and don't have to change with them: a new version adds a type and a
//! conversion, and old records stay readable. Field names are part of the format.

mod budget;
mod caches;
mod capacity;
mod cause;
mod change;
mod claim;
mod closed;
mod container;
mod entry;
mod history;
mod incident;
mod noted;
mod notify;
mod pace;
mod place;
mod principal;
mod remedy;
mod requests;
mod sharing;
mod snapshot;
mod spares;
mod spec;
mod standing;
mod storage;
mod sweep;
#[cfg(test)]
pub(crate) mod tests;
mod topology;

use gangline_base::Principal;
use serde::{Deserialize, Serialize};

pub use capacity::{CapacityChanged, EnergyV1, NodeStateV1, OverheadsV1};
pub use closed::{ClosedAttempt, ClosedProgress, ClosedReport, ClosedShare};
pub use entry::{Recorded, decode_entry, encode_entry};
pub use incident::{IncidentMet, IncidentOf};
pub use noted::Noted;
pub use principal::{encode_event, principal_of};
pub use requests::{DatasetRequests, FetchV1, RequestRateV1, RequestsMade};
pub use snapshot::{decode_snapshot, encode_snapshot};
pub use spec::{PinV1, SpecV1, hang_timeout_ms};
pub use storage::{StorageClassV1, StorageMeasured, StorageOwner, StorageRateV1};

/// The version of most bodies.
const VERSION: u32 = 1;
/// The version of a body with a sweep whose jobs share one specification.
const VERSION_SHARED: u32 = 2;
/// The version of an attempt's result.
const VERSION_CLOSED: u32 = 3;
/// The version of a change of capacity.
const VERSION_CAPACITY: u32 = 4;
/// The version of a measurement of stored data, and the newest version that can be read.
const VERSION_STORAGE: u32 = 5;

/// A body with its version.
#[derive(Serialize, Deserialize)]
struct Versioned<T> {
    v: u32,
    /// On whose authority an event happened; missing from decisions, which follow from events, and from events
    /// of earlier releases, which skip it when they read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    by: Option<String>,
    body: T,
}

/// The reason why a body can't be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The body isn't JSON of the expected shape.
    #[error("a journal body is not readable")]
    Malformed(#[from] serde_json::Error),
    /// A newer Gangline wrote the body.
    #[error("a journal body has version {found}, this gangline reads up to {VERSION_STORAGE}")]
    Newer {
        /// The body's version.
        found: u32,
    },
    /// A value breaks a rule of its type.
    #[error("a journal body holds an impossible {0}")]
    Impossible(&'static str),
}

fn encode<T: Serialize>(v: u32, body: T) -> Vec<u8> {
    serde_json::to_vec(&Versioned { v, by: None, body }).expect("types of the codec have string keys only")
}

fn encode_by<T: Serialize>(v: u32, by: &Principal, body: T) -> Vec<u8> {
    let versioned = Versioned { v, by: Some(by.to_string()), body };
    serde_json::to_vec(&versioned).expect("types of the codec have string keys only")
}

fn decode<T: for<'de> Deserialize<'de>>(bytes: &[u8]) -> Result<T, Error> {
    #[derive(Deserialize)]
    struct OnlyVersion {
        v: u32,
    }
    let found = serde_json::from_slice::<OnlyVersion>(bytes)?.v;
    if found > VERSION_STORAGE {
        return Err(Error::Newer { found });
    }
    if found == 0 {
        return Err(Error::Impossible("version"));
    }
    Ok(serde_json::from_slice::<Versioned<T>>(bytes)?.body)
}
