//! What the control plane keeps: the journal, the read models, and the records in both.
//!
//! [`ports`] says what the control plane asks of a store and what a store promises; `sqlite` keeps it with
//! [`db`] and [`model`].
//! [`db`] is the journal and the file that it shares with the read models, [`model`] the read models'
//! records and queries, [`codec`] the encoding of the journal's bodies. Keeps.

pub mod codec;
pub mod db;
mod deflate;
pub mod history;
mod linking;
pub mod model;
pub mod ports;
pub mod rebuild;
mod reported;
mod sqlite;
pub mod tracking;

pub use linking::link_or_copy;
pub use sqlite::unless_row_damaged;
