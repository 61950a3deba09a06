//! The real binary with real processes.

mod archive;
mod product;
mod supervisor;
