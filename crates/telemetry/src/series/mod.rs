//! The series store: every metric of every job and node, in compressed columns on the local disk.
//!
//! A [`Batch`] of rows goes through one thread into a log (synced before it is acknowledged) and into the head in
//! memory. A full or old head becomes a segment file with three resolutions: the points themselves, minutes and hours.
//! Segments are never changed; a second thread merges small ones and drops what its [`Keep`] no longer asks for.
//! Queries read the head and the segments without waiting for either thread.
//!
//! What holds: a batch that was acknowledged outlives a crash; a batch that is sent twice is stored once; a torn or
//! damaged record costs itself only and is counted; a full disk refuses batches and harms nothing that is stored; memory,
//! names and files have limits ([`Limits`]). The store shares nothing with the scheduler's journal, so it can neither
//! delay nor stop a decision.

mod bytes;
mod chunk;
mod column;
mod copy;
mod error;
mod head;
mod key;
mod log;
mod merge;
mod query;
mod rollup;
mod segment;
mod service;
mod store;
#[cfg(test)]
mod tests;
mod writer;

pub use copy::{copy, is_of_store};
pub use error::Error;
pub use head::Limits;
pub use key::{Batch, Point, Row, Scope, Series, Source};
pub use merge::Keep;
pub use query::{Answer, Curve, Query};
pub use rollup::{Bucket, Resolution, fit};
pub use service::{Elsewhere, Handle, Options, Service, Stored, Summary};
pub use store::Damage;
