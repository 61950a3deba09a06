//! The real binary with real processes.

mod accounts;
mod agents;
mod allocations;
mod archive;
mod machines;
mod plain_machines;
mod plan;
mod pool;
mod product;
mod queue;
mod refusals;
mod slurm;
mod supervisor;
