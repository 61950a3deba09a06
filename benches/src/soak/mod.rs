//! `soak`: the product under faults of all kinds for as long as one likes, and an oracle that keeps its own record.
//!
//! Clients submit, cancel and watch by the command line. Meanwhile the control plane, supervisors, shims and ranks are killed and stopped at random,
//! the data folder's disk fills up and has room again, and between two lives of the control plane its journal is cut,
//! rolled back or has a bit flipped. Nothing of the product is linked: this drives the built `gangline` (GANGLINE_BINARY, or the
//! target folder's). All of it happens in a folder below the target folder, which is left there if something doesn't hold.

mod chaos;
mod client;
mod damage;
mod disk;
mod jobs;
mod journal;
mod ledger;
mod oracle;
mod record;
mod scan;
mod trial;
mod verdict;
mod watch;
mod witness;
mod world;

use trial::Soak;
pub(crate) use trial::run;
