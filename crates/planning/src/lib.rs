//! Planning: from a model, a task and a cluster to memory, step time, run time and cost; and the search for the best layout.
//!
//! Pure: text comes in as text, a plan goes out as a value. Planning may compute in floating point; each quantity
//! carries its unit in its type (`units`), and each estimate is checked against published measurements by
//! `cargo xtask bench planning`. One formula lives in one function, whose documentation gives formula, units and source.
//!
//! The flow: [`model`] (what is trained) x [`workload`] (how, on what data) x [`hardware`] (on what) x [`layout`] (cut how) ->
//! [`memory`] per pipeline stage and [`time`] per optimizer step.

#[cfg(test)]
pub(crate) mod fixtures;
pub mod hardware;
pub mod layout;
pub mod memory;
pub mod model;
mod names;
pub mod plan;
pub mod reliability;
pub mod search;
pub mod sourcing;
pub mod time;
pub mod units;
pub mod workload;

#[cfg(test)]
mod guide;
