//! The journal's own language: what the engine's entries and snapshots look like on disk, versions 1 and 2.
//!
//! Every body is JSON `{"v":1,...}`. Version 2 is version 1 where a sweep's jobs share one specification: only a body that has
//! such a sweep says 2, so that a gangline from before says which it can't read, and reads the others. Version 3 is what an attempt
//! came to ([`ClosedAttempt`]), which isn't the engine's but the control plane's own. These types mirror the engine's and are free to stay when the engine's change: a new
//! version adds a type and a conversion, and old records stay readable. Field names are part of the format.

mod claim;
mod closed;
mod entry;
mod history;
mod pace;
mod remedy;
mod sharing;
mod snapshot;
mod spares;
mod spec;
mod standing;
mod sweep;
#[cfg(test)]
mod tests;
mod topology;

use serde::{Deserialize, Serialize};

pub use closed::{ClosedAttempt, ClosedProgress, ClosedReport, ClosedShare};
pub use entry::{Recorded, decode_entry, encode_entry};
pub(crate) use snapshot::{decode_snapshot, encode_snapshot};
pub(crate) use spec::{PinV1, hang_timeout_ms};

/// The version written.
const VERSION: u32 = 1;
/// The version of a body with a sweep whose jobs share their specification.
const VERSION_SHARED: u32 = 2;
/// The version of what an attempt came to; the newest that is read.
const VERSION_CLOSED: u32 = 3;

/// A body with its version.
#[derive(Serialize, Deserialize)]
struct Versioned<T> {
    v: u32,
    body: T,
}

/// Why a body can't be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It isn't JSON of the shape this version writes.
    #[error("a journal body is not readable")]
    Malformed(#[from] serde_json::Error),
    /// A newer Gangline wrote it.
    #[error("a journal body has version {found}, this gangline reads up to {VERSION_CLOSED}")]
    Newer {
        /// Its version.
        found: u32,
    },
    /// A value in it breaks a rule of its type.
    #[error("a journal body holds an impossible {0}")]
    Impossible(&'static str),
}

fn encode<T: Serialize>(v: u32, body: T) -> Vec<u8> {
    serde_json::to_vec(&Versioned { v, body }).expect("types of the codec have string keys only")
}

fn decode<T: for<'de> Deserialize<'de>>(bytes: &[u8]) -> Result<T, Error> {
    #[derive(Deserialize)]
    struct OnlyVersion {
        v: u32,
    }
    let found = serde_json::from_slice::<OnlyVersion>(bytes)?.v;
    if found > VERSION_CLOSED {
        return Err(Error::Newer { found });
    }
    if found == 0 {
        return Err(Error::Impossible("version"));
    }
    Ok(serde_json::from_slice::<Versioned<T>>(bytes)?.body)
}
