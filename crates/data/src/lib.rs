//! Token datasets: any token file straight to the trainer, in the same order on any number of ranks.
//!
//! A [`Source`] is a stream of tokens in files that are read as they lie. [`order`] says which sample comes when, as a pure
//! function of numbers. A [`Loader`] fills a rank's rows of each global batch, and is resumed from a [`State`] of at most
//! 200 bytes, at any number of ranks.
//!
//! A sample is `L` input tokens and the `L` tokens that follow each of them. Sample `i` of a stream begins at token `i * L`, so
//! neighbours share one token and every token but the first is once a label. Samples run across documents and files; the
//! tokens behind the last whole sample (fewer than `L + 1`) are left out. Documents may be packed instead: then a sample is
//! whole documents, or parts of those that are longer.
//!
//! Remote data is fetched into a [`Cache`] that a node's programs share: as it is read, and ahead of that, since the order is known.
//!
//! Synchronous: a call reads memory that the kernel fills from disk. Files mustn't change while they are open; a change is
//! told instead of the next batch.

mod ahead;
mod cache;
mod compressed;
mod convert;
mod cursor;
mod error;
mod forecast;
#[cfg(feature = "fuzz")]
pub mod fuzz;
mod guarded;
mod index;
mod loader;
mod megatron_run;
pub mod order;
mod packed;
mod read_ahead;
mod sealed;
mod source;
mod state;
pub mod text;
mod token_type;
#[cfg(feature = "tokenize")]
pub mod tokenize;

pub use cache::{
    CACHE_VARIABLE, Cache, CacheOptions, DatasetHolding, Fetched, Holding, QUOTA_VARIABLE, QueueHolding, RANGE_BYTES,
    THREADS, cache_folder, holdings_of, is_remote, unpacked_folder,
};
pub use convert::{Target, Writer, Written};
pub use cursor::{Cursor, Options, SEQUENCE_MAX, Sample, THREADS_MAX};
pub use error::Error;
pub use gangline_objects::{READS_VARIABLE, Requests, stored_in, tallies_in};
pub use index::FILES_MAX;
pub use loader::{Loader, Room};
pub use packed::{NO_LABEL, position_bytes};
pub use source::layout::PIECES_MAX;
pub use source::{Format, Source, unpacked};
pub use state::{STATE_BYTES_MAX, State};
pub use token_type::{TokenType, Width};
