//! The real binary with real processes.

mod product;
mod supervisor;
