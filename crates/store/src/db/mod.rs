//! The journal and the read models: one SQLite file, in the data folder or in a folder of its own on a local
//! disk.
//!
//! One thread owns the [`Journal`] and commits batches: the records of a batch and its read-model rows become
//! durable together, with one fsync (group commit). HTTP handlers read through a [`Reader`], which sees only
//! durable state.
//!
//! Keeps these invariants:
//! - replaying the records gives the state before the crash. Records are numbered without gaps, and each
//!   checksum covers the one before.
//! - an anchor beside the database distinguishes a journal that lost its tail from a whole one.
//! - after a failed commit the journal is poisoned: every later write is refused with that error, until
//!   the journal is reopened.
//! - bodies are opaque here and versioned by their writer; the schema has its own version.
//! - records, batches, snapshots, the write-ahead log and the file have limits.
//!
//! [`Journal::open`] says how a start handles damage.

mod anchor;
mod anew;
mod archive;
mod begin;
mod compaction;
mod copy;
mod error;
mod folder;
mod identity;
mod journal;
mod network;
mod reader;
mod record;
mod recovery;
mod renew;
mod row;
mod schema;
mod segment;
mod shrink;
mod snapshots;
#[cfg(test)]
mod tests;
mod verdict;

pub use anew::Remains;
pub use archive::HISTORY;
pub use compaction::{ArchiveOrder, Archived, Examination, Room, SnapshotOrder};
pub use copy::{CopyInfo, copy, given_out, is_beside, raise_given_out, verify};
pub use error::Error;
pub use folder::{HeldFolder, journal_folder, place_journal};
pub use journal::{CommitInfo, Entry, Journal, Limits, Options};
pub use reader::Reader;
pub use record::{Record, Sequence};
pub use recovery::{Recovered, Snapshot, Warning};
pub(crate) use renew::{Keys, NewSnapshot, Offline, is_malformed, salvage};
pub use row::DamagedRow;
pub(crate) use row::{check_row, damaged, damaged_row, row_sum};
pub use shrink::{ShrinkOrder, Shrunk};
pub use snapshots::SNAPSHOTS;
