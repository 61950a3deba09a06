//! Tests of the service's promises, on a real journal, with a launcher that only records its calls and a
//! clock that moves only when told. Turns are taken by hand, so that nothing depends on threads.

mod allocations;
mod archives;
mod asked;
mod bills;
mod dataset_caches;
mod disk;
mod ends;
mod epoch;
mod flow;
mod kept;
mod lost;
mod notify;
mod once;
mod overheads;
mod pages;
mod pins;
mod platform;
mod random;
mod rebuilt;
mod restart;
mod retention;
mod room;
mod rows;
mod started;
mod stored;
mod supervisor;
mod survey;
mod sweeps;
mod torn_log;
mod waiting;
mod world;

use supervisor::{BUSY, Supervisor, fault};
use world::{World, spec};
