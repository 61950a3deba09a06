//! The soak itself, which needs more crates than the rest of the project's commands do.

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
pub(super) use trial::run;
