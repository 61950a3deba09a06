//! The real binary with real processes.

mod supervisor;
