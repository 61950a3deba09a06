//! The real binary with real processes.

mod archive;
mod plan;
mod product;
mod slurm;
mod supervisor;
