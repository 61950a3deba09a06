//! What the project's commands share with the benchmarks: other programs, Python environments, and the wheel.
#![expect(clippy::print_stderr, reason = "these are command-line tools: output is their purpose")]

pub mod command;
pub mod environment;
pub mod wheel;
