//! Diagnoses why a run failed, from the output of its ranks and the kernel logs of its nodes: deterministic,
//! offline, in milliseconds.
//!
//! [`Rules::classify`] takes [`Evidence`] and returns a [`Verdict`]: one of eleven categories, a subcategory,
//! a confidence, the lines that support it, the rank or node at fault, and what to do. Rules are data
//! (rules/*.toml), each with the source that documents its message's form. docs/reference/diagnosis.md tells
//! how a verdict is reached, and how to add a rule.
//!
//! Keeps A-1 (no I/O, no clock: texts come in, a value goes out) and A-10 (lines, tracebacks and findings
//! have limits).

mod elastic;
mod evidence;
mod judge;
mod line;
mod literal;
mod progress;
mod rules;
mod scan;
mod source;
mod text;
mod traceback;
mod verdict;

pub use evidence::{
    CgroupEvents, DeviceEvent, DeviceFault, Evidence, HEAD_BYTES_MAX, KernelLog, LeftOut, Log, TAIL_BYTES_MAX,
};
pub use gangline_base::FaultCategory as Category;
pub use judge::classify;
pub use rules::{RuleError, Rules};
pub use verdict::{Alternative, Certainty, Quote, Verdict};
