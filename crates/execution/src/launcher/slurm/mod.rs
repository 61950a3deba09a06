//! What is Slurm's: so far its description of a network.

mod hostlist;
mod topology;

pub use topology::{InvalidTopology, Places, read_topology};
