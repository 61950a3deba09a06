//! The checkpoint store: saves tensors into durable folders, and never offers a torn or corrupted checkpoint.
//!
//! Keeps A-6 (a checkpoint is visible only when complete and verified; the last good one is never the one
//! being replaced), A-7 (after a failed fsync the writer is poisoned and says so), A-9 (disk types have a
//! version and stay inside) and A-10 (every name, header, manifest, list and wait has a limit).
//!
//! On disk a checkpoint is a folder, `step-0000000100/`, with one safetensors file per rank and a
//! `manifest.json` that names every tensor with its BLAKE3 hash. The folder is built as `.partial-...` and
//! then renamed, so a folder under its final name is complete. Ranks of a gang communicate only through the
//! file system: each rank writes its shard and an index of it, and rank 0 commits when it has seen all
//! indexes.
//!
//! Every rank passes all replicated tensors to [`Store::save`], and each rank writes the ones assigned to it
//! (largest first, to the rank with the fewest bytes so far). If the replicas differ, the save is refused and
//! the error names the tensor ([`Compare`]). Of a sharded tensor, each rank passes its own part ([`PartOf`]).
//! A [`Snapshot`] reads any box of any tensor, so a checkpoint can be loaded by any number of ranks and with
//! any sharding.

mod alike;
pub mod archive;
mod awaiting;
pub mod bench;
mod branches;
mod branching;
mod check;
mod claim;
mod commit;
mod compare;
mod confirmation;
mod copying;
mod digest;
mod disk;
mod elements;
mod error;
mod export;
pub mod forecast;
mod foreign;
#[cfg(any(test, feature = "fuzz"))]
pub mod fuzz;
mod history;
mod import;
mod layout;
mod lease;
mod lineage;
mod magnitude;
mod manifest;
mod marks;
mod memory;
mod note;
mod options;
mod packing;
mod pending;
mod pin;
mod present;
mod prune;
mod reading;
mod refusal;
mod region;
mod retention;
mod saving;
mod shard;
mod slab;
mod snapshot;
mod staged;
mod staging;
mod store;
mod tensor;
mod threads;
mod tiering;
mod verification;

pub use alike::{AlikeValue, Compare};
pub use branches::BranchInfo;
pub use branching::Began;
pub use check::{Problem, VerifyReport};
pub use claim::{Claim, look_for};
pub use compare::{Compared, Verdict, compare};
pub use confirmation::Confirmation;
pub use digest::Digest;
pub use disk::{DiskAct, DiskHook};
pub use error::{Error, Flaw};
pub use export::{ExportOptions, Exported, Precision, RESERVED_PREFIX, SHARD_BYTES_DEFAULT};
pub use gangline_base::{Bytes, Step, Timestamp, with_causes};
pub use import::Imported;
pub use lineage::{Branch, RUN_BYTES_MAX};
pub use magnitude::{Magnitude, Squares};
pub use manifest::{CheckpointInfo, TensorInfo, WORLD_SIZE_MAX};
pub use note::{METADATA_BYTES_MAX, NoteType, NoteTypes, ORIGIN_PREFIX};
pub use options::{Clock, Options, Role};
pub use packing::{PACKED_ALIGNMENT, pack};
pub use pending::{Pending, SAVES_IN_FLIGHT_MAX, Saved};
pub use pin::Pinned;
pub use prune::{PrunePolicy, Pruned};
pub use retention::{LOSS_NOTE, Reason, Rule};
pub use snapshot::{Snapshot, Verify, Wanted};
pub use staging::{Finished, finish_staged};
pub use store::{Checkpoint, Latest, Listed, Skipped, Store};
pub use tensor::{DIMENSIONS_MAX, DataType, NAME_BYTES_MAX, PartOf, TENSORS_MAX, Tensor, TensorView};
pub use tiering::Tier;
pub use verification::Verification;
