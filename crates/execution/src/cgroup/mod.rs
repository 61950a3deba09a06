//! Control groups of Linux: what memory a group has left, and the group that holds all processes of an attempt on a node.

mod attempt;
mod memory;
mod place;

pub(crate) use attempt::AttemptGroup;
pub(crate) use memory::{Limit, limit, oom_kills};
